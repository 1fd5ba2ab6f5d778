-- The nodes that live.
--
-- Returns  the time (ms), then node, deadline (ms), facts ... of each.
local found = {now_ms}
local living = redis.call('ZRANGEBYSCORE', NODES, '(' .. now_ms, '+inf', 'WITHSCORES')
for place = 1, #living, 2 do
  local facts = redis.call('HGET', FACTS, living[place])
  if facts then
    found[#found + 1] = living[place]
    found[#found + 1] = living[place + 1]
    found[#found + 1] = facts
  end
end
return found

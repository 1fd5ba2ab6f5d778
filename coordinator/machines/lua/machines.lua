-- The machines that live.
--
-- KEYS     alive, facts, orders
-- Returns  the time (ms), then machine, deadline (ms), what stands of it, its order ('' for none) ...
local found = {now_ms}
local alive = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now_ms, '+inf', 'WITHSCORES')
for place = 1, #alive, 2 do
  local facts = redis.call('HGET', KEYS[2], alive[place])
  if facts then
    found[#found + 1] = alive[place]
    found[#found + 1] = alive[place + 1]
    found[#found + 1] = facts
    found[#found + 1] = redis.call('HGET', KEYS[3], alive[place]) or ''
  end
end
return found

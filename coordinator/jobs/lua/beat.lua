-- Prolong the life of a node that lives; never make one.
--
-- ARGV     node, then its facts (JSON) if they changed
-- Returns  1; 0 when it is dead, or was never there.
local node, facts = ARGV[1], ARGV[2]

if not deadline(node) then
  return 0
end
local joined, ttl_ms, known = string.match(redis.call('HGET', FACTS, node) or '', '^(%d+) (%d+) (.*)$')
if not joined then
  return 0
end
if facts then
  redis.call('HSET', FACTS, node, joined .. ' ' .. ttl_ms .. ' ' .. facts)
end
redis.call('ZADD', NODES, now_ms + tonumber(ttl_ms), node)
keep()
return 1

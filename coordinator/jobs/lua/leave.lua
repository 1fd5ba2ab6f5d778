-- End being a node, and leading.
--
-- ARGV     node
-- Returns  1; 0 when it was none.
local node = ARGV[1]

if redis.call('GET', LEADER) == node then
  redis.call('DEL', LEADER)
end
redis.call('HDEL', FACTS, node)
return redis.call('ZREM', NODES, node)

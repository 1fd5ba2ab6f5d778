-- Take the lead if it is free, or prolong our own.
--
-- ARGV     node, TTL (ms)
-- Returns  1; 0 when another node has it.
local node = ARGV[1]

if (redis.call('GET', LEADER) or node) ~= node then
  return 0
end
redis.call('SET', LEADER, node, 'PX', ARGV[2])
return 1

-- Take the lead of the placement if it is free, or prolong our own; what managers wrote lives on.
--
-- KEYS     leader, orders, deployments
-- ARGV     token, TTL (ms), how long deployments are kept (ms)
-- Returns  0 when another one leads; 1 as before; 2 since now; 3 so, and nobody led before.
local leader = redis.call('GET', KEYS[1])
if leader and leader ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('PEXPIRE', KEYS[2], KEEP_MS)
redis.call('PEXPIRE', KEYS[3], ARGV[3])
if leader then
  return 1
end
-- '=' stands in no machine's name.
local led = redis.call('HGET', KEYS[2], '=led')
redis.call('HSET', KEYS[2], '=led', '1')
return led and 2 or 3

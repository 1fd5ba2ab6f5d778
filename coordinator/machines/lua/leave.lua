-- End being a machine.
--
-- KEYS     alive, facts
-- ARGV     machine, incarnation
-- Returns  1; 0 when it was none, or another incarnation has its name.
local joined, held = living(KEYS[1], KEYS[2], ARGV[1])
if not joined or held ~= ARGV[2] then
  return 0
end
redis.call('ZREM', KEYS[1], ARGV[1])
return redis.call('HDEL', KEYS[2], ARGV[1])

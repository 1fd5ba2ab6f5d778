-- Prolong the life of a machine that lives; never make one.
--
-- KEYS     alive, facts
-- ARGV     machine, incarnation, then its report (JSON) if it changed
-- Returns  1; 0 when it is dead, or was never there; 2 when another incarnation has its name.
local machine, incarnation, report = ARGV[1], ARGV[2], ARGV[3]

local joined, held, ttl_ms = living(KEYS[1], KEYS[2], machine)
if not joined then
  return 0
end
if held ~= incarnation then
  return 2
end
if report then
  redis.call('HSET', KEYS[2], machine, joined .. ' ' .. held .. ' ' .. ttl_ms .. ' ' .. report)
end
redis.call('ZADD', KEYS[1], now_ms + tonumber(ttl_ms), machine)
redis.call('PEXPIRE', KEYS[1], KEEP_MS)
redis.call('PEXPIRE', KEYS[2], KEEP_MS)
return 1

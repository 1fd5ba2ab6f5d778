-- Be a machine; those that are dead are forgotten.
--
-- KEYS     alive, facts
-- ARGV     machine, incarnation, TTL (ms), report (JSON)
-- Returns  the number of its joining; 0 when a greater incarnation lives under the name.
local machine, incarnation, ttl_ms, report = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

local _, held = living(KEYS[1], KEYS[2], machine)
if held and tonumber(held) > tonumber(incarnation) then
  return 0
end
for _, dead in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms, 'LIMIT', 0, 1000)) do
  redis.call('ZREM', KEYS[1], dead)
  redis.call('HDEL', KEYS[2], dead)
end
local joined = redis.call('HINCRBY', KEYS[2], '=joined', 1)
redis.call('HSET', KEYS[2], machine, joined .. ' ' .. incarnation .. ' ' .. ttl_ms .. ' ' .. report)
redis.call('ZADD', KEYS[1], now_ms + ttl_ms, machine)
redis.call('PEXPIRE', KEYS[1], KEEP_MS)
redis.call('PEXPIRE', KEYS[2], KEEP_MS)
return joined

-- Remember the name of a service when a member registers in it, or forget one that stands empty.
--
-- KEYS[1]  zset    service -> time of its last registration (ms, Redis time)
-- ARGV     service, least age to be forgotten (ms; '' to remember it)
-- Returns  1 if something was written.
local service, age_ms = ARGV[1], ARGV[2]

if age_ms == '' then
  redis.call('ZADD', KEYS[1], now_ms, service)
  return 1
end
local registered = redis.call('ZSCORE', KEYS[1], service)
-- The age leaves time to a member that has named its service and is about to take its lease there.
if registered and tonumber(registered) < now_ms - tonumber(age_ms) then
  return redis.call('ZREM', KEYS[1], service)
end
return 0

-- Forget the name of a service that stands empty.
--
-- KEYS[1]  zset    service -> time of its last registration (ms, Redis time)
-- ARGV     service, least age to be forgotten (ms)
-- Returns  1 if it was forgotten.
local registered = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or '')
-- The age leaves time to a member that has named its service and is about to take its lease there.
if registered and (registered < now_ms - tonumber(ARGV[2]) or registered > now_ms + DAY_MS) then
  return redis.call('ZREM', KEYS[1], ARGV[1])
end
return 0

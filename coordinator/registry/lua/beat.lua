-- A heartbeat: prolong a lease that stands; never make one.
--
-- KEYS[1]  zset    member -> deadline (ms, Redis time)
-- KEYS[2]  hash    the member's facts
-- KEYS[3]  zset    member -> number of its last change
-- ARGV     member, TTL (ms), incarnation, '1' if the facts concern the managers, then field, value ...
-- Returns  1; 2 when it is asked to drain; 0 when there is no such lease, or another incarnation
--          holds it: register again. Then the time (ms).
local member, ttl_ms = ARGV[1], tonumber(ARGV[2])

local held = redis.call('HMGET', KEYS[2], 'incarnation', 'drain')
if held[1] ~= ARGV[3] then
  return {0, now_ms}
end
-- CH counts what moved; a second beat within one millisecond moves nothing.
if redis.call('ZADD', KEYS[1], 'XX', 'CH', now_ms + ttl_ms, member) == 0
  and not redis.call('ZSCORE', KEYS[1], member)
then
  return {0, now_ms}
end
if ARGV[5] then
  redis.call('HSET', KEYS[2], unpack(ARGV, 5))
end
outlive(KEYS[1], KEYS[2], ttl_ms)
if ARGV[4] == '1' then
  note_change(KEYS[3], member)
end
return {held[2] == '1' and 2 or 1, now_ms}

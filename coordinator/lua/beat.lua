-- A heartbeat: prolong a lease that stands; never make one.
--
-- KEYS[1]  zset    member -> deadline (ms, Redis time)
-- KEYS[2]  hash    the member's facts
-- KEYS[3]  zset    member -> number of its last change
-- ARGV     member, TTL (ms), incarnation, '1' if the facts concern the managers, then field, value ...
-- Returns  1; 0 when there is no such lease, or another incarnation holds it: register again.
local member, ttl_ms, incarnation, concerns = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]

if redis.call('HGET', KEYS[2], 'incarnation') ~= incarnation then
  return 0
end
if not redis.call('ZSCORE', KEYS[1], member) then
  return 0
end
if ARGV[5] then
  redis.call('HSET', KEYS[2], unpack(ARGV, 5))
end
prolong(KEYS[1], KEYS[2], member, ttl_ms)
if concerns == '1' then
  note_change(KEYS[3], member)
end
return 1

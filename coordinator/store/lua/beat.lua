-- Renew an existing lease; never create one. A renewal after the deadline is noted as a change.
--
-- KEYS[1]  zset    member -> deadline (ms, Redis time)
-- KEYS[2]  hash    the member's facts
-- KEYS[3]  zset    member -> number of its last change; absent: leases end at their deadlines. Else
--                  they end when a sweep removes them; until then a late heartbeat renews them
-- ARGV     member, TTL (ms), incarnation, 1 to note the change, then changed field, value ...
-- Returns  {0: no lease; 1: renewed; 2: renewed, and a drain is requested; 3: another incarnation
--          holds it}, the time (ms).
local member, ttl_ms = ARGV[1], tonumber(ARGV[2])

local deadline = tonumber(redis.call('ZSCORE', KEYS[1], member) or '')
local held = redis.call('HGET', KEYS[2], 'incarnation')
if not held or not deadline or (not KEYS[3] and deadline <= now_ms) then
  return {0, now_ms}
end
if held ~= ARGV[3] then
  return {3, now_ms}
end
redis.call('ZADD', KEYS[1], now_ms + ttl_ms, member)
if ARGV[5] then
  redis.call('HSET', KEYS[2], unpack(ARGV, 5))
end
outlive(KEYS[1], KEYS[2], KEYS[3], ttl_ms)
-- Followers do not list a member whose deadline has passed: they have to see that it lives.
if ARGV[4] == '1' or (KEYS[3] and deadline <= now_ms) then
  note_change(KEYS[3], member)
end
return {redis.call('HGET', KEYS[2], 'drain') == '1' and 2 or 1, now_ms}

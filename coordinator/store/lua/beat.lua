-- Renew an existing lease; never create one. A renewal after the deadline is noted as a change.
--
-- KEYS[1]  zset    member -> deadline (ms, Redis time)
-- KEYS[2]  hash    the member's facts
-- KEYS[3]  zset    member -> number of its last change; with it, leases end when a sweep removes them,
--                  and until then a late heartbeat renews them; absent: leases end at their deadlines
-- ARGV     member, TTL (ms), incarnation, 1 to note the change, then changed field, value ...
-- Returns  {code, time (ms)}. Code 0: no lease; 1: renewed; 2: renewed, and a drain is requested;
--          3: another incarnation holds the lease.
local member, ttl_ms = ARGV[1], tonumber(ARGV[2])

local deadline = tonumber(redis.call('ZSCORE', KEYS[1], member) or '')
local holder = redis.call('HGET', KEYS[2], 'incarnation')
if not holder or not deadline or (not KEYS[3] and deadline <= now_ms) then
  return {0, now_ms}
end
if holder ~= ARGV[3] then
  return {3, now_ms}
end
redis.call('ZADD', KEYS[1], now_ms + ttl_ms, member)
if ARGV[5] then
  redis.call('HSET', KEYS[2], unpack(ARGV, 5))
end
set_expiries(KEYS[1], KEYS[2], KEYS[3], ttl_ms)
-- Managers do not list a member whose deadline has passed, so they have to see that it lives.
if ARGV[4] == '1' or (KEYS[3] and deadline <= now_ms) then
  note_change(KEYS[3], member)
end
return {redis.call('HGET', KEYS[2], 'drain') == '1' and 2 or 1, now_ms}

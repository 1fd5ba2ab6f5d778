-- Begin a lease, or begin it again: deadline and facts in one step.
--
-- KEYS[1]  zset    member -> deadline (ms, Redis time)
-- KEYS[2]  hash    the member's facts
-- KEYS[3]  zset    member -> number of its last change
-- ARGV     member, TTL (ms), incarnation, then field, value, field, value ...
-- Returns  1; 0 when a newer incarnation holds the name.
local member, ttl_ms, incarnation = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local holder = redis.call('HGET', KEYS[2], 'incarnation')
if holder and older(incarnation, holder) then
  return 0
end
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], 'incarnation', incarnation, unpack(ARGV, 4))
prolong(KEYS[1], KEYS[2], member, ttl_ms)
note_change(KEYS[3], member)
return 1

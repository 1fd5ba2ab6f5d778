-- Begin a lease, or begin it again: deadline and facts in one step.
--
-- KEYS[1]  zset    member -> deadline (ms, Redis time)
-- KEYS[2]  hash    the member's facts
-- KEYS[3]  zset    member -> number of its last change
-- ARGV     member, TTL (ms), incarnation, then field, value, field, value ...
-- Returns  1; 0 when a newer incarnation holds the name.
local member, ttl_ms, incarnation = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local held = redis.call('HMGET', KEYS[2], 'incarnation', 'drain')
if held[1] and older(incarnation, number(held[1])) then
  return 0
end
redis.call('DEL', KEYS[2])
if held[1] == incarnation and held[2] then
  redis.call('HSET', KEYS[2], 'drain', held[2])
end
redis.call('HSET', KEYS[2], 'incarnation', incarnation, unpack(ARGV, 4))
local deadline = now_ms + ttl_ms
if held[1] and held[1] ~= incarnation then
  -- Plain beats of the one before do not reach this deadline: its next beat is a whole one, and the last.
  deadline = deadline + math.floor(ttl_ms / 2)
end
redis.call('ZADD', KEYS[1], deadline, member)
outlive(KEYS[1], KEYS[2], ttl_ms)
redis.call('ZREM', KEYS[3], '=' .. member)
note_change(KEYS[3], member)
return 1

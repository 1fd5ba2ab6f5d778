-- Start or restart a lease: deadline and facts in one step.
--
-- KEYS[1]  zset    member -> deadline (ms, Redis time)
-- KEYS[2]  hash    the member's facts
-- KEYS[3]  zset    member -> number of its last change; absent: the set is not followed, and a
--                  lease ends at its deadline
-- ARGV     member, TTL (ms), incarnation, then field, value, field, value ...
-- Returns  1; 0 if a newer incarnation holds the id.
local member, ttl_ms, incarnation = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local holder, drain = redis.call('HGET', KEYS[2], 'incarnation'), false
if KEYS[3] then
  drain = holder == incarnation and redis.call('HGET', KEYS[2], 'drain')
else
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now_ms)
  holder = lives(KEYS[1], member) and holder
end
if holder and older(incarnation, number(holder)) then
  return 0
end
redis.call('DEL', KEYS[2])
if drain then
  redis.call('HSET', KEYS[2], 'drain', drain)
end
redis.call('HSET', KEYS[2], 'incarnation', incarnation, unpack(ARGV, 4))
local deadline = now_ms + ttl_ms
if KEYS[3] then
  if holder and holder ~= incarnation then
    -- The raised deadline makes the next plain heartbeat of the former incarnation fail. It then sends a
    -- full heartbeat, which is refused.
    deadline = deadline + math.floor(ttl_ms / 2)
  end
  redis.call('ZREM', KEYS[3], '=' .. member)
  note_change(KEYS[3], member)
else
  redis.call('HSET', KEYS[2], 'joined', string.format('%.0f', now_us))
end
redis.call('ZADD', KEYS[1], deadline, member)
set_expiries(KEYS[1], KEYS[2], KEYS[3], ttl_ms)
return 1

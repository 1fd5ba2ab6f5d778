-- Request a member to finish its work and leave: its next heartbeat returns the request.
--
-- KEYS[1]  zset    member -> deadline (ms, Redis time)
-- KEYS[2]  hash    the member's facts
-- KEYS[3]  zset    member -> number of its last change
-- ARGV     member
-- Returns  1; 0 if it has no lease.
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) or redis.call('EXISTS', KEYS[2]) == 0 then
  return 0
end
if redis.call('HGET', KEYS[2], 'drain') ~= '1' then
  -- The raised deadline makes the next plain heartbeat fail, so that the member sends a full one.
  redis.call('ZINCRBY', KEYS[1], math.max(0, math.floor(redis.call('PTTL', KEYS[2]) / 5)), ARGV[1])
end
redis.call('HSET', KEYS[2], 'drain', '1', 'state', 'draining')
note_change(KEYS[3], ARGV[1])
return 1

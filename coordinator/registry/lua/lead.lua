-- Take the lease to compute a service's assignments if it is free, or prolong our own.
--
-- KEYS[1]  string  token of the leader
-- KEYS[2]  hash    assignments, with the epoch of the table
-- KEYS[3]  zset    student -> counter of its last change
-- KEYS[4]  hash    teachers that were probed well
-- KEYS[5]  stream  the log
-- KEYS[6]  hash    the plan
-- ARGV     token, TTL (ms), then how long (ms) the table, the log and the plan outlive their leader
-- Returns  token of the leader, term, counter, the id of this server process, the time (ms).
local token = ARGV[1]

local leader = redis.call('GET', KEYS[1]) or token
if leader == token then
  redis.call('SET', KEYS[1], token, 'PX', ARGV[2])
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
  redis.call('PEXPIRE', KEYS[3], ARGV[3])
  redis.call('PEXPIRE', KEYS[4], ARGV[3])
  redis.call('PEXPIRE', KEYS[5], ARGV[4])
  redis.call('PEXPIRE', KEYS[6], ARGV[5])
end
local epoch = redis.call('HMGET', KEYS[2], '=term', '=counter')
local id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
return {leader, number(epoch[1]), number(epoch[2]), id, now_ms}

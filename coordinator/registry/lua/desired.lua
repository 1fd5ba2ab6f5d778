-- Say how many teachers a service should have, as its leader.
--
-- KEYS[1]  string  token of the leader
-- KEYS[2]  hash    the number desired
-- KEYS[3]  stream  the log
-- ARGV     token, count, reason, how long (ms) the number and the log are kept, most events kept,
--          then kind, subject, text of an entry of the log, or none of them
-- Returns  1; 0 when another one leads.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local now = string.format('%.0f', now_ms)
if redis.call('HGET', KEYS[2], 'count') ~= ARGV[2] then
  redis.call('HSET', KEYS[2], 'since_ms', now)
end
redis.call('HSET', KEYS[2], 'count', ARGV[2], 'reason', ARGV[3], 'at_ms', now)
redis.call('PEXPIRE', KEYS[2], ARGV[4])
if ARGV[7] then
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[6], '*', 'kind', ARGV[7], 'subject', ARGV[8],
    'text', ARGV[9], 'before', '', 'after', '')
  redis.call('PEXPIRE', KEYS[3], ARGV[5])
end
return 1

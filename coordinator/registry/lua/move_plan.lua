-- Say which content a service is meant to serve and why, as the leader of what the table stands at: a
-- plan never stands without its line in the log.
--
-- KEYS[1]  string  token of the leader
-- KEYS[2]  hash    assignments, with the epoch of the table
-- KEYS[3]  hash    the plan
-- KEYS[4]  stream  the log
-- ARGV     token, term, counter of the table, expected version of the plan,
--          content, next content, at, how long (ms) the plan and the log are kept,
--          most events kept, kind, subject, text
-- Returns  1; 0 when another one leads, the table stands elsewhere, or another version stands.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local epoch = redis.call('HMGET', KEYS[2], '=term', '=counter')
if number(epoch[1]) ~= ARGV[2] or number(epoch[2]) ~= ARGV[3] then
  return 0
end
local version = number(redis.call('HGET', KEYS[3], 'version'))
if version ~= ARGV[4] then
  return 0
end
redis.call('HSET', KEYS[3], 'content_id', ARGV[5], 'next_content_id', ARGV[6], 'at', ARGV[7],
  'version', string.format('%.0f', version + 1), 'since_ms', string.format('%.0f', now_ms))
redis.call('PEXPIRE', KEYS[3], ARGV[8])
redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[10], '*', 'kind', ARGV[11], 'subject', ARGV[12],
  'text', ARGV[13], 'before', '', 'after', '')
redis.call('PEXPIRE', KEYS[4], ARGV[9])
return 1

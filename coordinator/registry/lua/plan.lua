-- Say which content a service is meant to serve, if nobody else did since it was read.
--
-- KEYS[1]  hash    the plan
-- ARGV     expected version, content, next content, at, how long it is kept (ms)
-- Returns  1; 0 when another version stands.
local version = number(redis.call('HGET', KEYS[1], 'version'))
if version ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'content_id', ARGV[2], 'next_content_id', ARGV[3], 'at', ARGV[4],
  'version', string.format('%.0f', version + 1), 'since_ms', string.format('%.0f', now_ms))
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return 1

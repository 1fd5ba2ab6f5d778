-- Say what a service is served by.
--
-- KEYS     deployments
-- ARGV     service, deployment (JSON), how long deployments are kept (ms), what it replaces or ''
-- Returns  1; 0 when something else stands there, and then nothing is done.
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[4] then
  return 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1

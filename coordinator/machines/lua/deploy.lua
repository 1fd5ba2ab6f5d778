-- Say what a service is served by.
--
-- KEYS     deployments
-- ARGV     service, deployment (JSON), how long deployments are kept (ms)
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1

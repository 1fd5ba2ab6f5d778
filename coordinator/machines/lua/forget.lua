-- Take away a deployment that is withdrawn.
--
-- KEYS     leader, deployments
-- ARGV     token, service
-- Returns  1; 0 when another one leads, or it is not there, or not withdrawn.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local text = redis.call('HGET', KEYS[2], ARGV[2])
if not text or not cjson.decode(text).withdrawn then
  return 0
end
return redis.call('HDEL', KEYS[2], ARGV[2])

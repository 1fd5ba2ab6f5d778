-- Give back the lease to compute a service's assignments.
--
-- KEYS[1]  string  token of the leader
-- ARGV     token
-- Returns  1; 0 when another one holds it, or nobody.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])

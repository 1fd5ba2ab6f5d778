-- Give the lead back.
--
-- KEYS     leader
-- ARGV     token
-- Returns  1; 0 when another one has it, or nobody.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])

-- Give the lead back.
--
-- ARGV     node
-- Returns  1; 0 when another one has it, or nobody.
if redis.call('GET', LEADER) ~= ARGV[1] then
  return 0
end
return redis.call('DEL', LEADER)

-- Give the queue back.
--
-- ARGV     runner
-- Returns  1; 0 when another one has it, or nobody.
if runner() ~= ARGV[1] then
  return 0
end
return redis.call('DEL', RUNNER)

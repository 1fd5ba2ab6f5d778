-- Have the queue if nobody has it, or prolong that.
--
-- ARGV     runner, facts (JSON), TTL (ms)
-- Returns  1; 0 when another one has it.
local holder = runner()
if holder ~= '' and holder ~= ARGV[1] then
  return 0
end
redis.call('SET', RUNNER, ARGV[1] .. ' ' .. ARGV[2], 'PX', ARGV[3])
keep()
return 1

-- Say how a job does.
--
-- ARGV     runner, job, its number, 1 when it has ended and else 0, progress (JSON)
-- Returns  1; 0 when the runner does not have the queue, or the job is another one.
local job = ARGV[2]
local number = string.match(redis.call('HGET', SPECS, job) or '', '^(%d+) ')
if runner() ~= ARGV[1] or number ~= ARGV[3] then
  return 0
end
redis.call('HSET', PROGRESS, job, ARGV[4] .. ' ' .. ARGV[5])
keep()
return 1

-- Replace what operators ask of a job that goes.
--
-- ARGV     job, wish (JSON)
-- Returns  1; 0 when there is none of that name, or it has ended.
if ended(ARGV[1]) ~= false then
  return 0
end
redis.call('HSET', WISHES, ARGV[1], ARGV[2])
keep()
return 1

-- Append what a job printed, of which the last pieces are kept.
--
-- KEYS[7]  the job's log
-- ARGV     job, runner, lines (JSON), how many pieces are kept
-- Returns  1; 0 when the runner does not have the queue, or there is no such job.
if runner() ~= ARGV[2] or redis.call('HEXISTS', SPECS, ARGV[1]) == 0 then
  return 0
end
redis.call('XADD', LOG, 'MAXLEN', ARGV[4], '*', 'body', ARGV[3])
redis.call('PEXPIRE', LOG, KEEP_MS)
return 1

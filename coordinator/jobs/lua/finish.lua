-- Say how the job ended, unless that is said.
--
-- ARGV     outcome (JSON)
-- Returns  1; 0 when it was said before.
if redis.call('EXISTS', OUTCOME) == 1 then
  return 0
end
redis.call('SET', OUTCOME, ARGV[1], 'PX', string.format('%d', KEEP_MS))
return 1

-- Replace the history of the job's checkpoints, in the name of a generation.
--
-- ARGV     generation, what it has to be, what it is from now on (JSON)
-- Returns  1; 0 when it is another one; else the current generation as text.
local now = current()
if now ~= ARGV[1] then
  return now
end
if history() ~= ARGV[2] then
  return 0
end
redis.call('HSET', GENERATION, 'history', ARGV[3])
keep()
return 1

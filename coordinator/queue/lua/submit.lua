-- Add a job, unless one of its name goes. Of those that have ended, the last ones are kept.
--
-- KEYS[7]  the job's log
-- ARGV     job, spec (JSON), how many that have ended are kept, what the name of a log begins with
-- Returns  its number; 0 when one of its name goes.
local job, spec, kept, logs = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

if ended(job) == false then
  return 0
end
local over = {}
for _, name in ipairs(redis.call('HKEYS', SPECS)) do
  if name ~= '=number' and name ~= job and ended(name) then
    local number = string.match(redis.call('HGET', SPECS, name), '^(%d+)')
    over[#over + 1] = {tonumber(number) or 0, name}
  end
end
table.sort(over, function(a, b) return a[1] < b[1] end)
for place = 1, #over - kept do
  local name = over[place][2]
  redis.call('HDEL', SPECS, name)
  redis.call('HDEL', WISHES, name)
  redis.call('HDEL', PROGRESS, name)
  redis.call('DEL', logs .. name)
end
local number = redis.call('HINCRBY', SPECS, '=number', 1)
redis.call('HSET', SPECS, job, number .. ' ' .. string.format('%d', now_ms) .. ' ' .. spec)
redis.call('HDEL', WISHES, job)
redis.call('HDEL', PROGRESS, job)
redis.call('DEL', LOG)
keep()
return number

-- All jobs.
--
-- Returns  job, 'number submitted_ms spec', wish, 'ended progress' of each; '' where there is none.
local found = {}
local specs = redis.call('HGETALL', SPECS)
for place = 1, #specs, 2 do
  if specs[place] ~= '=number' then
    found[#found + 1] = specs[place]
    found[#found + 1] = specs[place + 1]
    found[#found + 1] = redis.call('HGET', WISHES, specs[place]) or ''
    found[#found + 1] = redis.call('HGET', PROGRESS, specs[place]) or ''
  end
end
return found

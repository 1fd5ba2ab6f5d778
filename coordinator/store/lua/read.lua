-- Read hashes at one moment.
--
-- KEYS     hashes
-- Returns  for each {field, value, field, value ...}.
local found = {}
for position, key in ipairs(KEYS) do
  found[position] = redis.call('HGETALL', key)
end
return found

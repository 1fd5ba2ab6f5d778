-- The reservations that live; those that do not are forgotten.
--
-- Returns  name, slots, number, milliseconds that are left, of each.
local found = {}
local all = redis.call('HGETALL', RESERVED)
for place = 1, #all, 2 do
  local slots, number, deadline_ms = string.match(all[place + 1], '^(%d+) (%d+) (%d+)$')
  if slots and tonumber(deadline_ms) > now_ms then
    found[#found + 1] = all[place]
    found[#found + 1] = slots
    found[#found + 1] = number
    found[#found + 1] = tonumber(deadline_ms) - now_ms
  elseif all[place] ~= '=number' then
    redis.call('HDEL', RESERVED, all[place])
  end
end
return found

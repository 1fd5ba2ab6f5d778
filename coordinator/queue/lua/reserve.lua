-- Ask for slots, or prolong that.
--
-- ARGV     name, slots, TTL (ms)
-- Returns  the number of the reservation.
local name = ARGV[1]
local _, number, deadline_ms =
  string.match(redis.call('HGET', RESERVED, name) or '', '^(%d+) (%d+) (%d+)$')
if not number or tonumber(deadline_ms) <= now_ms then
  number = redis.call('HINCRBY', RESERVED, '=number', 1)
end
local deadline = string.format('%d', now_ms + tonumber(ARGV[3]))
redis.call('HSET', RESERVED, name, ARGV[2] .. ' ' .. number .. ' ' .. deadline)
keep()
return tonumber(number)

-- Take out the members whose deadline has passed; their facts stay until they expire, to name the dead.
--
-- KEYS[1]  zset    member -> deadline (ms, Redis time)
-- KEYS[2]  zset    member -> number of its last change
-- ARGV     most members to take out at once (Redis serves nobody else meanwhile), time (ms) after
--          which nobody is taken out ('' for never): this call has waited while nobody could beat;
--          id of the server process that may do it ('' for any): the others may hold an older state
-- Returns  the members taken out.
if ARGV[2] ~= '' and now_ms > tonumber(ARGV[2]) then
  return {}
end
local dead = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms, 'LIMIT', 0, ARGV[1])
-- A deadline that no TTL of ours could have made would never pass.
local odd = redis.call('ZRANGEBYSCORE', KEYS[1], now_ms + DAY_MS, '+inf', 'LIMIT', 0, ARGV[1])
for _, member in ipairs(odd) do
  dead[#dead + 1] = member
end
if #dead > 0 and ARGV[3] ~= '' and not string.find(redis.call('INFO', 'server'), ARGV[3], 1, true) then
  return {}
end
for _, member in ipairs(dead) do
  redis.call('ZREM', KEYS[1], member)
  note_change(KEYS[2], member)
end
return dead

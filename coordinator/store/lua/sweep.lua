-- Remove the members past their deadline. Their facts stay until they expire, to describe dead members.
--
-- KEYS[1]  zset    member -> deadline (ms, Redis time)
-- KEYS[2]  zset    member -> number of its last change
-- ARGV     greatest number of members to remove (Redis serves no other client meanwhile); time (ms) after which
--          none is removed ('': no limit), because heartbeats may have waited as long as this call; id of the
--          expected Redis process ('': any), because another one may have an older state
-- Returns  the removed members.
if ARGV[2] ~= '' and now_ms > tonumber(ARGV[2]) then
  return {}
end
local dead = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms, 'LIMIT', 0, ARGV[1])
-- A deadline beyond the longest TTL is invalid, and might never pass.
local invalid = redis.call('ZRANGEBYSCORE', KEYS[1], now_ms + DAY_MS, '+inf', 'LIMIT', 0, ARGV[1] - #dead)
for _, member in ipairs(invalid) do
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

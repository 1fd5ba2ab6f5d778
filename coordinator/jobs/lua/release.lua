-- What a rank has leased and not done goes back to its place.
--
-- ARGV     generation, rank
-- Returns  how many shards; or the current generation as text.
local generation, rank = ARGV[1], ARGV[2]

local now = current()
if now ~= generation then
  return now
end
local count, held = 0, redis.call('HGETALL', HELD)
for place = 1, #held, 2 do
  if held[place + 1] == rank then
    local epoch, start = parts(held[place])
    redis.call('HDEL', HELD, held[place])
    redis.call('ZADD', SHARDS, string.format('%.0f', epoch * EPOCH_PLACES + start), held[place])
    count = count + 1
  end
end
redis.call('PEXPIRE', SHARDS, KEEP_MS)
return count

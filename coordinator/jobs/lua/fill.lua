-- Lay out the shards of an epoch, unless somebody has in this generation.
--
-- ARGV     generation, epoch, then 'start:stop start:stop ...'
-- Returns  1; 0 when they were laid out before; else the current generation as text.
local generation, epoch = ARGV[1], ARGV[2]

local now = current()
if now ~= generation then
  return now
end
if redis.call('HEXISTS', FILLED, epoch) == 1 then
  return 0
end
local count = 0
for start, stop in string.gmatch(ARGV[3], '(%d+):(%d+)') do
  local place = string.format('%.0f', tonumber(epoch) * EPOCH_PLACES + tonumber(start))
  redis.call('ZADD', SHARDS, place, epoch .. ':' .. start .. ':' .. stop)
  count = count + 1
end
redis.call('HSET', FILLED, epoch, count)
keep()
return 1

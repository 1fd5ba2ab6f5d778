-- A rank has trained all of a shard.
--
-- ARGV     generation, 'epoch:start:stop', rank
-- Returns  1; 0 when the rank does not have it; else the current generation as text.
local generation, member, rank = ARGV[1], ARGV[2], ARGV[3]

local now = current()
if now ~= generation then
  return now
end
if redis.call('HGET', HELD, member) ~= rank then
  return 0
end
return redis.call('HDEL', HELD, member)

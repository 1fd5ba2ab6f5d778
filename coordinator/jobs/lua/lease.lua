-- The first shard of an epoch that nobody has; the same as before where the question is the same.
--
-- ARGV     generation, epoch, rank, number of the rank's question ('' where it has none), rows that
--          it has use for ('' where it takes all): the rest of a larger shard stays
-- Returns  {start, stop}; 0 when there is none; else the current generation as text.
local generation, epoch, rank = ARGV[1], ARGV[2], ARGV[3]
local question, most = tonumber(ARGV[4]), tonumber(ARGV[5])

local now = current()
if now ~= generation then
  return now
end
if question then
  local number, answer = string.match(redis.call('HGET', HELD, '=' .. rank) or '', '^(%d+) (.*)$')
  if number and question <= tonumber(number) then
    local _, start, stop = parts(answer)
    return {start, stop}
  end
end
local first = tonumber(epoch) * EPOCH_PLACES
local member = redis.call(
  'ZRANGEBYSCORE', SHARDS, string.format('%.0f', first),
  string.format('(%.0f', first + EPOCH_PLACES), 'LIMIT', 0, 1
)[1]
if not member then
  return 0
end
redis.call('ZREM', SHARDS, member)
local _, start, stop = parts(member)
if most and stop - start > most then
  local cut = start + most
  local rest = string.format('%s:%.0f:%.0f', epoch, cut, stop)
  redis.call('ZADD', SHARDS, string.format('%.0f', first + cut), rest)
  redis.call('PEXPIRE', SHARDS, KEEP_MS)
  member, stop = string.format('%s:%.0f:%.0f', epoch, start, cut), cut
end
redis.call('HSET', HELD, member, rank)
if question then
  redis.call('HSET', HELD, '=' .. rank, ARGV[4] .. ' ' .. member)
end
redis.call('PEXPIRE', HELD, KEEP_MS)
return {start, stop}

-- Lease the first free shard of an epoch. A repeated request gets the same shard again. If the epoch has
-- no shards, or a lease of the rank is missing, Redis has returned with older data: nothing is leased.
--
-- KEYS[1]  hash    the generation
-- KEYS[2]  zset    free shards 'epoch:start:stop' -> sort key, exact as a double: epoch * 2^32 + start
-- KEYS[3]  hash    '=<rank>' -> number of shards that it got, and the last one
-- KEYS[4]  hash    epoch -> number of its shards
-- ARGV     generation, epoch, rank, number of the shard among those of the rank, from 1 ('': unknown),
--          greatest number of rows ('': any; the rest of a larger shard stays free), expiry of shards (ms)
-- Returns  {start, stop}; 0 if no shard is free; the current generation as text if it is another one, or
--          if data is missing.
local epoch, rank, request_number, max_rows = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local current = redis.call('HGET', KEYS[1], 'number') or ''
if current ~= ARGV[1] or not redis.call('HGET', KEYS[4], epoch) then
  return current
end
local function parts(shard)
  local _, start, stop = string.match(shard, '^(%d+):(%d+):(%d+)$')
  return tonumber(start), tonumber(stop)
end
if request_number then
  local last_number, answer = string.match(redis.call('HGET', KEYS[3], '=' .. rank) or '', '^(%d+) (.*)$')
  last_number = tonumber(last_number or 0)
  if request_number <= last_number then
    return {parts(answer)}
  elseif request_number > last_number + 1 then
    return current
  end
end
local first = tonumber(epoch) * 4294967296
local shard = redis.call(
  'ZRANGEBYSCORE', KEYS[2], string.format('%.0f', first),
  string.format('(%.0f', first + 4294967296), 'LIMIT', 0, 1
)[1]
if not shard then
  return 0
end
redis.call('ZREM', KEYS[2], shard)
local start, stop = parts(shard)
if max_rows and stop - start > max_rows then
  local split = start + max_rows
  local rest = string.format('%s:%.0f:%.0f', epoch, split, stop)
  redis.call('ZADD', KEYS[2], string.format('%.0f', first + split), rest)
  redis.call('PEXPIRE', KEYS[2], ARGV[6])
  shard, stop = string.format('%s:%.0f:%.0f', epoch, start, split), split
end
if request_number then
  redis.call('HSET', KEYS[3], '=' .. rank, ARGV[4] .. ' ' .. shard)
end
redis.call('PEXPIRE', KEYS[3], ARGV[6])
return {start, stop}

-- Run commands if all conditions hold, so that a deposed leader or a writer that read an old state
-- changes nothing.
--
-- KEYS     all keys that conditions and commands name
-- ARGV     number of conditions; for each: its kind, key, field, value; then for each command the number
--          of its words and its words. A command is put, stamp or rows (below), or one of Redis
-- Returns  0 if the commands ran; else the position of the first condition that failed.
local cursor = 2
for position = 1, tonumber(ARGV[1]) do
  local kind, key, field, value = ARGV[cursor], ARGV[cursor + 1], ARGV[cursor + 2], ARGV[cursor + 3]
  local holds
  if kind == 'leads' then
    local holder, token = leader(key)
    holds = holder == field and token == value
  elseif kind == 'number' then
    holds = number(redis.call('HGET', key, field)) == value
  elseif kind == 'score' then
    holds = tonumber(redis.call('ZSCORE', key, field) or '') == tonumber(value)
  else
    holds = (redis.call('HGET', key, field) or '') == value
    if kind == 'once' and holds then  -- the call is repeated because its answer was lost
      return 0
    end
    holds = holds or kind == 'once'
  end
  if not holds then
    return position
  end
  cursor = cursor + 4
end

-- HSET, or HDEL where the value is ''.
local function put(key, field, value)
  if value == '' then
    redis.call('HDEL', key, field)
  else
    redis.call('HSET', key, field, value)
  end
end

-- Change rows of a hash with numbered changes; only the last `kept` changes are kept.
local function put_rows(rows, changes, counter, kept, first, last)
  for index = first, last, 2 do
    put(rows, ARGV[index], ARGV[index + 1])
    redis.call('ZADD', changes, counter, ARGV[index])
  end
  local surplus = redis.call('ZCARD', changes) - kept
  if surplus > 0 then
    local floor = redis.call('ZRANGE', changes, surplus - 1, surplus - 1, 'WITHSCORES')[2]
    redis.call('HSET', rows, '=floor', floor)
    redis.call('ZREMRANGEBYRANK', changes, 0, surplus - 1)
  end
end

while ARGV[cursor] do
  local last = cursor + tonumber(ARGV[cursor])
  local name, key = ARGV[cursor + 1], ARGV[cursor + 2]
  if name == 'put' then
    for index = cursor + 3, last, 2 do
      put(key, ARGV[index], ARGV[index + 1])
    end
  elseif name == 'stamp' then
    redis.call('HSET', key, ARGV[cursor + 3], string.format('%.0f', now_ms))
  elseif name == 'rows' then
    local changes, counter, kept = ARGV[cursor + 3], ARGV[cursor + 4], tonumber(ARGV[cursor + 5])
    put_rows(key, changes, counter, kept, cursor + 6, last)
  else
    redis.call(unpack(ARGV, cursor + 1, last))
  end
  cursor = last + 1
end
return 0

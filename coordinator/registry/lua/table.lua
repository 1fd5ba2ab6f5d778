-- Read the assignment table: all of it, or what was written since an epoch.
--
-- KEYS[1]  hash    student -> row, and the epoch
-- KEYS[2]  zset    student -> counter of its last change
-- ARGV     term, counter that the reader knows ('' for none)
-- Returns  1 if what follows is all, term, counter, {student, row, student, row ...}; a row that was
--          taken out is ''.
local epoch = redis.call('HMGET', KEYS[1], '=term', '=counter', '=floor')
local term, counter = number(epoch[1]), number(epoch[2])
local known = tonumber(ARGV[2])
if term ~= ARGV[1] or known > tonumber(counter) or known < tonumber(number(epoch[3])) then
  return {1, term, counter, redis.call('HGETALL', KEYS[1])}
end
local found = {}
if ARGV[2] ~= counter then
  for _, student in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. ARGV[2], '+inf')) do
    found[#found + 1] = student
    found[#found + 1] = redis.call('HGET', KEYS[1], student) or ''
  end
end
return {0, term, counter, found}

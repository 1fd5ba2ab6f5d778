-- Read a hash with numbered changes: all rows, or those written since a version.
--
-- KEYS[1]  hash    member -> row; =term, =counter: the version; =floor: changes up to this number are deleted
-- KEYS[2]  zset    member -> counter of its last change
-- ARGV     the version that the caller knows: term, counter ('' and 0 for none)
-- Returns  {1 if these are all rows, else 0; term; counter; {member, row, member, row ...}}. The row
--          of a deleted member is ''.
local term = number(redis.call('HGET', KEYS[1], '=term'))
local counter = number(redis.call('HGET', KEYS[1], '=counter'))
local known = tonumber(ARGV[2])
local floor = tonumber(number(redis.call('HGET', KEYS[1], '=floor')))
if term ~= ARGV[1] or known > tonumber(counter) or known < floor then
  return {1, term, counter, redis.call('HGETALL', KEYS[1])}
end
local rows = {}
if ARGV[2] ~= counter then
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. ARGV[2], '+inf')) do
    rows[#rows + 1] = member
    rows[#rows + 1] = redis.call('HGET', KEYS[1], member) or ''
  end
end
return {0, term, counter, rows}

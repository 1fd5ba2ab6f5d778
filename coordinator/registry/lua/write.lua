-- Change the assignment table, the log and who is admitted, if the writer leads and the table stands
-- where it thinks: a leader that was paused cannot write after its successor.
--
-- KEYS[1]  string  token of the leader
-- KEYS[2]  hash    student -> row; =term, =counter: its epoch; =floor: changes up to it are forgotten;
--                  =write: the last write, which may come twice when its answer was lost
-- KEYS[3]  zset    student -> counter of its last change
-- KEYS[4]  hash    teacher -> incarnation that was probed well
-- KEYS[5]  stream  the log
-- ARGV     token, name of this write, expected term, counter, new term, counter,
--          how long (ms) the table and the log outlive their leader, most changes and events kept,
--          number of rows, of teachers, then student, row ('' takes it out) ...,
--          teacher, incarnation ('' forgets it) ..., kind, subject, text, before, after ...
-- Returns  1; 0 when another one leads, or the table stands elsewhere.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local epoch = redis.call('HMGET', KEYS[2], '=term', '=counter', '=write')
local term, counter = number(epoch[1]), number(epoch[2])
if epoch[3] == ARGV[2] and term == ARGV[5] and counter == ARGV[6] then
  return 1
end
if term ~= ARGV[3] or counter ~= ARGV[4] then
  return 0
end

local function put(key, member, value)
  if value == '' then
    redis.call('HDEL', key, member)
  else
    redis.call('HSET', key, member, value)
  end
end

if term ~= ARGV[5] then  -- numbers start again: who knew the old term reads everything
  redis.call('DEL', KEYS[3])
  redis.call('HSET', KEYS[2], '=floor', ARGV[6])
end
redis.call('HSET', KEYS[2], '=term', ARGV[5], '=counter', ARGV[6], '=write', ARGV[2])
local at = 12
for _ = 1, tonumber(ARGV[10]) do
  put(KEYS[2], ARGV[at], ARGV[at + 1])
  redis.call('ZADD', KEYS[3], ARGV[6], ARGV[at])
  at = at + 2
end
local surplus = redis.call('ZCARD', KEYS[3]) - tonumber(ARGV[9])
if surplus > 0 then
  local last = redis.call('ZRANGE', KEYS[3], surplus - 1, surplus - 1, 'WITHSCORES')[2]
  redis.call('HSET', KEYS[2], '=floor', last)
  redis.call('ZREMRANGEBYRANK', KEYS[3], 0, surplus - 1)
end
for _ = 1, tonumber(ARGV[11]) do
  put(KEYS[4], ARGV[at], ARGV[at + 1])
  at = at + 2
end
while ARGV[at] do
  redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[9], '*', 'kind', ARGV[at], 'subject', ARGV[at + 1],
    'text', ARGV[at + 2], 'before', ARGV[at + 3], 'after', ARGV[at + 4])
  at = at + 5
end
redis.call('PEXPIRE', KEYS[2], ARGV[7])
redis.call('PEXPIRE', KEYS[3], ARGV[7])
redis.call('PEXPIRE', KEYS[4], ARGV[7])
redis.call('PEXPIRE', KEYS[5], ARGV[8])
return 1

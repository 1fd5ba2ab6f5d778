-- Put before every other script of a queue: the clock, its keys, and how long they are kept.
--
-- KEYS  all keys of one queue, in the order of `NAMES` in keys.py, then that of a job's log where a
--       script needs it; they lie in one slot.
local SPECS, WISHES, PROGRESS, RUNNER, RESERVED, EVENTS, LOG =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]

-- Redis server time: the only clock that deadlines are made of.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

-- What is known of a queue outlives the last sign of anybody by this.
local KEEP_MS = 604800000

-- A sign of life: nothing of the queue is forgotten for another while.
local function keep()
  for _, key in ipairs({SPECS, WISHES, PROGRESS, RESERVED, EVENTS}) do
    redis.call('PEXPIRE', key, KEEP_MS)
  end
end

-- Whether a job of this name has ended; nil where there is none.
local function ended(job)
  if redis.call('HEXISTS', SPECS, job) == 0 then
    return nil
  end
  return string.sub(redis.call('HGET', PROGRESS, job) or '0', 1, 1) == '1'
end

-- The id of who runs the jobs; '' where nobody does.
local function runner()
  return string.match(redis.call('GET', RUNNER) or '', '^(%S*)')
end

-- Put before every other script of a job: the clock, its keys, and how long they are kept.
--
-- KEYS  all keys of one job, in the order of `NAMES` in keys.py; they lie in one slot.
local NODES, FACTS, LEADER, GENERATION, SHARDS, HELD, FILLED, REPORTS, EVENTS, OUTCOME =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]

-- Redis server time: the only clock that deadlines are made of.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

-- What is known of a job outlives the last sign of its nodes by this.
local KEEP_MS = 86400000
-- A shard's place in SHARDS is a whole double: its epoch times this, plus its start.
local EPOCH_PLACES = 4294967296

-- A sign of a node: nothing of the job is forgotten for another day.
local function keep()
  for _, key in ipairs({NODES, FACTS, GENERATION, SHARDS, HELD, FILLED, REPORTS, EVENTS, OUTCOME}) do
    redis.call('PEXPIRE', key, KEEP_MS)
  end
end

-- The deadline of a node that lives; nil of one that does not.
local function deadline(node)
  local at = tonumber(redis.call('ZSCORE', NODES, node) or '')
  if at and at > now_ms then
    return at
  end
end

-- The current generation as text; '' before the first.
local function current()
  return redis.call('HGET', GENERATION, 'number') or ''
end

-- The history of the job's checkpoints (JSON).
local function history()
  return redis.call('HGET', GENERATION, 'history') or '{}'
end

-- Epoch, start and stop of what stands in SHARDS and HELD.
local function parts(member)
  local epoch, start, stop = string.match(member, '^(%d+):(%d+):(%d+)$')
  return tonumber(epoch), tonumber(start), tonumber(stop)
end

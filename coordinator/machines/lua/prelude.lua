-- Put before every other script of machines: the clock, and how machines are read. It declares no key.

-- Redis server time: the only clock that deadlines are made of.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

-- What is known of machines outlives the last beat of any by this.
local KEEP_MS = 86400000

-- What stands of a machine that lives: joined, incarnation, ttl_ms, its report; nil of one that does not.
local function living(alive, facts, machine)
  local at = tonumber(redis.call('ZSCORE', alive, machine) or '')
  if not at or at <= now_ms then
    return nil
  end
  return string.match(redis.call('HGET', facts, machine) or '', '^(%d+) (%d+) (%d+) (.*)$')
end

-- Put before every other script: the clock, and how leases and changes are written. It declares no key.

-- Redis server time: the only clock that deadlines are made of.
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)

-- Changes are kept this long; who looked away longer reads everything anew.
local CHANGES_MS = 60000
-- What lies further ahead was written by no member of ours.
local DAY_MS = 86400000

-- Is incarnation a older than b? Decimal strings without leading zeros; doubles would lose digits.
local function older(a, b)
  return #a < #b or (#a == #b and a < b)
end

-- A stored number as it stands; '0' for none, or for what is no number.
local function number(text)
  if text and #text < 21 and string.match(text, '^%d+$') then
    return text
  end
  return '0'
end

-- Expiries that outlive a deadline. A script prolongs a lease once in 2 TTL: facts outlive that by 3, so
-- that the dead can be named; the zset by 2 at least, so that it need not be written each time.
local function outlive(leases, facts, ttl_ms)
  redis.call('PEXPIRE', facts, 5 * ttl_ms)
  if redis.call('PTTL', leases) < 4 * ttl_ms then
    redis.call('PEXPIRE', leases, 5 * ttl_ms)
  end
end

-- Note that a member changed, under a number that only grows, so that a manager reads what is new.
local function note_change(changes, member)
  redis.call('ZREMRANGEBYSCORE', changes, now_us + DAY_MS * 1000, '+inf')
  local last = redis.call('ZRANGE', changes, -1, -1, 'WITHSCORES')[2]
  local at = math.max(now_us, (tonumber(last) or 0) + 1)
  redis.call('ZADD', changes, at, member)
  redis.call('ZREMRANGEBYSCORE', changes, '-inf', now_us - CHANGES_MS * 1000)
  redis.call('PEXPIRE', changes, CHANGES_MS)
end

-- Prepended to every other script: the clock, and functions for leases, changes and leaders.

-- Redis server time: the only clock of deadlines.
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)

-- Expiry of changes. A manager whose cursor is older reads all members.
local CHANGES_MS = 60000
-- The longest TTL.
local DAY_MS = 86400000

-- Is incarnation a older than b? Decimal strings without leading zeros; doubles would lose digits.
local function older(a, b)
  return #a < #b or (#a == #b and a < b)
end

-- A stored number as text; '0' if it is missing or invalid.
local function number(text)
  if text and #text < 21 and string.match(text, '^%d+$') then
    return text
  end
  return '0'
end

-- Does the member have a lease whose deadline has not passed?
local function lives(deadlines, member)
  local deadline = tonumber(redis.call('ZSCORE', deadlines, member) or '')
  return deadline and deadline > now_ms
end

-- Set the expiries of facts and deadlines.
-- In a followed set, members send a full heartbeat at least every 2 TTLs. The facts expire 5 TTLs after it,
-- so that managers can describe dead members. The zset expires 4 to 5 TTLs after it: most heartbeats need
-- not change its expiry. In other sets, some Redis users have no permission for PTTL: there the zset expires
-- 4 TTLs after its last deadline.
local function set_expiries(deadlines, facts, followed, ttl_ms)
  redis.call('PEXPIRE', facts, 5 * ttl_ms)
  if not followed then
    local last = redis.call('ZRANGE', deadlines, -1, -1, 'WITHSCORES')[2]
    redis.call('PEXPIRE', deadlines, string.format('%.0f', math.min(last - now_ms, DAY_MS) + 4 * ttl_ms))
  elseif redis.call('PTTL', deadlines) < 4 * ttl_ms then
    redis.call('PEXPIRE', deadlines, 5 * ttl_ms)
  end
end

-- Record that a member changed, under a number that only grows, so that managers read only new changes.
local function note_change(changes, member)
  redis.call('ZREMRANGEBYSCORE', changes, now_us + DAY_MS * 1000, '+inf')
  local last = redis.call('ZRANGE', changes, -1, -1, 'WITHSCORES')[2]
  local at = math.max(now_us, (tonumber(last) or 0) + 1)
  redis.call('ZADD', changes, at, member)
  redis.call('ZREMRANGEBYSCORE', changes, '-inf', now_us - CHANGES_MS * 1000)
  redis.call('PEXPIRE', changes, CHANGES_MS)
end

-- Holder and fencing token of a leadership; the holder is false if the leadership has expired.
local function leader(key)
  local holder, token = redis.call('HGET', key, 'holder'), number(redis.call('HGET', key, 'token'))
  if (tonumber(redis.call('HGET', key, 'until_ms') or '') or 0) > now_ms then
    return holder, token
  end
  return false, token
end

-- Take a leadership if it is free, or renew ours, and extend the expiry of its keys.
--
-- KEYS[1]  hash    holder, token, until_ms, facts
-- KEYS[2]  any     kept alive by the leader, as are all further keys
-- ARGV     holder, TTL (ms), facts (JSON), 1 to return the id of the Redis process, then for each
--          further key its expiry (ms)
-- Returns  {holder; token; change; id of the Redis process, or ''; time (ms)}. The token grows with each
--          change of leadership, even if Redis lost its data. Change 0: another holder leads;
--          1: renewed; 2: gained; 3: gained, and nobody led before.
local server_id = ARGV[4] == '1' and string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''

local holder, token = leader(KEYS[1])
if holder and holder ~= ARGV[1] then
  return {holder, token, 0, server_id, now_ms}
end
local change = 1
if not holder then
  change = token == '0' and 3 or 2
  token = string.format('%.0f', math.max(now_ms, tonumber(token) + 1))
end
local until_ms = string.format('%.0f', now_ms + tonumber(ARGV[2]))
redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'token', token, 'until_ms', until_ms, 'facts', ARGV[3])
redis.call('PEXPIRE', KEYS[1], DAY_MS)
for position = 2, #KEYS do
  redis.call('PEXPIRE', KEYS[position], ARGV[position + 3])
end
return {ARGV[1], token, change, server_id, now_ms}

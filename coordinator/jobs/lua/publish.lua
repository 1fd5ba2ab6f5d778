-- Begin a generation. What was leased, laid out or told in the one before is void.
--
-- ARGV     node, number, body (JSON), then, if the history changes, what it has to be and what it is
--          from now on (JSON)
-- Returns  1; 0 when the node does not lead, the number is not the next one, or the history is
--          another one.
local node, number, body, known, following = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]

local before = tonumber(current())
if redis.call('GET', LEADER) ~= node or number < 1 or (before and number ~= before + 1) then
  return 0
end
if known then
  if history() ~= known then
    return 0
  end
  redis.call('HSET', GENERATION, 'history', following)
end
redis.call('HSET', GENERATION, 'number', ARGV[2], 'body', body, 'at_ms', string.format('%d', now_ms))
redis.call('DEL', SHARDS, HELD, FILLED, REPORTS)
keep()
return 1

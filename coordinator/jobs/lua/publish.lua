-- Begin a generation. What was leased, laid out or told in the one before is void.
--
-- ARGV     node, number, body (JSON)
-- Returns  1; 0 when the node does not lead, or the number is not the next one.
local node, number, body = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local before = tonumber(current())
if redis.call('GET', LEADER) ~= node or number < 1 or (before and number ~= before + 1) then
  return 0
end
redis.call('HSET', GENERATION, 'number', ARGV[2], 'body', body, 'at_ms', string.format('%d', now_ms))
redis.call('DEL', SHARDS, HELD, FILLED, REPORTS)
keep()
return 1

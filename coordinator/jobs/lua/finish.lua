-- Say how the job ended, unless that is said.
--
-- ARGV     node, number of the generation that it leads, outcome (JSON)
-- Returns  1; 0 when the node does not lead, the generation is another one, or it was said before.
local node, number, outcome = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local known = tonumber(current())
if redis.call('GET', LEADER) ~= node or (known and known ~= number) then
  return 0
end
if redis.call('EXISTS', OUTCOME) == 1 then
  return 0
end
redis.call('SET', OUTCOME, outcome, 'PX', string.format('%d', KEEP_MS))
return 1

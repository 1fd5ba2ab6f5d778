-- Be a node of the job; where no other one lives, how an earlier run ended is forgotten.
--
-- ARGV     node, TTL (ms), facts (JSON), the newest generation that it has seen of this run, or 0
-- Returns  the number of its joining.
local node, ttl_ms, facts, since = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

redis.call('ZREMRANGEBYSCORE', NODES, '-inf', now_ms)
redis.call('ZREM', NODES, node)
local earlier = since == 0 or (tonumber(current()) or 0) < since
if earlier and redis.call('ZCARD', NODES) == 0 then
  redis.call('DEL', OUTCOME)
end
for _, known in ipairs(redis.call('HKEYS', FACTS)) do
  if known ~= '=joined' and not redis.call('ZSCORE', NODES, known) then
    redis.call('HDEL', FACTS, known)
  end
end
local joined = redis.call('HINCRBY', FACTS, '=joined', 1)
redis.call('HSET', FACTS, node, joined .. ' ' .. ttl_ms .. ' ' .. facts)
redis.call('ZADD', NODES, now_ms + ttl_ms, node)
keep()
return joined

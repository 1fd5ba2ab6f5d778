-- Give a leadership back. Its token stays, so that the next one is greater.
--
-- KEYS[1]  hash    holder, token, until_ms
-- ARGV     holder
-- Returns  1; 0 if another one or nobody leads.
if leader(KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'until_ms', '0')
return 1

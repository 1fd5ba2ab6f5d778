-- Give a leadership back. The token stays, so that the next token is greater.
--
-- KEYS[1]  hash    holder, token, until_ms
-- ARGV     holder
-- Returns  1; 0 if the holder does not lead.
if leader(KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'until_ms', '0')
return 1

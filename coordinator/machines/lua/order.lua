-- Write orders, if the writer leads: one that was paused cannot write after its successor.
--
-- KEYS     leader, orders
-- ARGV     token, then machine, order (JSON; '' takes it away) ...
-- Returns  1; 0 when another one leads.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
for place = 2, #ARGV, 2 do
  if ARGV[place + 1] == '' then
    redis.call('HDEL', KEYS[2], ARGV[place])
  else
    redis.call('HSET', KEYS[2], ARGV[place], ARGV[place + 1])
  end
end
redis.call('PEXPIRE', KEYS[2], KEEP_MS)
return 1

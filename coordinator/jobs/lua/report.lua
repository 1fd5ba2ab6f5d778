-- Say how a rank does.
--
-- ARGV     generation, rank, facts (JSON)
-- Returns  1; 0, and nothing is kept, when the generation is not the current one.
if current() ~= ARGV[1] then
  return 0
end
redis.call('HSET', REPORTS, ARGV[2], string.format('%d', now_ms) .. ' ' .. ARGV[3])
redis.call('PEXPIRE', REPORTS, KEEP_MS)
return 1

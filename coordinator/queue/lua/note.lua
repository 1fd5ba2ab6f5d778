-- Append to the timeline, of which the last entries are kept.
--
-- ARGV     body (JSON), how many are kept
-- Returns  the entry's id.
local id = redis.call('XADD', EVENTS, 'MAXLEN', ARGV[2], '*', 'body', ARGV[1])
redis.call('PEXPIRE', EVENTS, KEEP_MS)
return id

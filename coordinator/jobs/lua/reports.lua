-- What the ranks of the current generation told last.
--
-- Returns  the generation as text, then rank, 'at_ms JSON' ...
local found = redis.call('HGETALL', REPORTS)
table.insert(found, 1, current())
return found

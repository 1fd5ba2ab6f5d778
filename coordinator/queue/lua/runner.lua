-- Who runs the jobs.
--
-- Returns  'id facts' and the milliseconds that are left to it; nothing when nobody does.
local found = redis.call('GET', RUNNER)
if not found then
  return {}
end
return {found, redis.call('PTTL', RUNNER)}

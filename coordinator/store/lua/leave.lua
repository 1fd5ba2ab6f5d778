-- End a lease for its owner. The change is noted under '=' and the member's id, so that managers can
-- distinguish a member that left from one that died or whose lease expired during an outage.
--
-- KEYS[1]  zset    member -> deadline (ms, Redis time)
-- KEYS[2]  hash    the member's facts
-- KEYS[3]  zset    member -> number of its last change; absent: the set is not followed
-- ARGV     member, incarnation ('': any)
-- Returns  1; 0 if there is no lease, or another incarnation holds it.
local member, incarnation = ARGV[1], ARGV[2]

local holder = redis.call('HGET', KEYS[2], 'incarnation')
if incarnation ~= '' and holder and holder ~= incarnation then
  return 0
end
local leases = redis.call('ZREM', KEYS[1], member)
local facts = redis.call('DEL', KEYS[2])
if leases + facts == 0 then
  return 0
end
if KEYS[3] then
  redis.call('ZREM', KEYS[3], member)
  note_change(KEYS[3], '=' .. member)
end
return 1

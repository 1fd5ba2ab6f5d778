"""Kill processes at random points of a member's life, and look for keys that would stay for ever.

`python -m edl.tests.system.registering URL KILLS SEED` prints how many were killed, or the keys
without an expiry, and exits with 1 then.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from typing import Any, Literal

import redis

from edl.coordinator.registry import LogEntry, Registry, Row, StoredContentPlan
from edl.coordinator.store.records import MemberBeat
from edl.coordinator.store.redis_store import RedisStore
from edl.tests.stores import renew
from edl.tests.waiting import DEADLINE_S

AT_ONCE = 4
TTL_S = 0.2
MAX_LIFE_S = 0.03

#: Lists all keys without an expiry, in one atomic step.
AUDIT = """
local bad = {}
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + time[2] / 1000
for _, key in ipairs(redis.call('KEYS', 'edl:*:teacher:*')) do
  if redis.call('PTTL', key) < 0 then bad[#bad + 1] = key .. ' has no expiry' end
end
for _, key in ipairs(redis.call('KEYS', 'edl:*:teachers')) do
  if redis.call('PTTL', key) < 0 then bad[#bad + 1] = key .. ' has no expiry' end
  local service = string.sub(key, 1, -10)
  local members = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for i = 1, #members, 2 do
    if not (tonumber(members[i + 1]) > 0 and tonumber(members[i + 1]) < 1e14) then
      bad[#bad + 1] = members[i] .. ' has no deadline'
    end
    if tonumber(members[i + 1]) > now_ms
      and redis.call('EXISTS', service .. ':teacher:' .. members[i]) == 0
    then
      bad[#bad + 1] = members[i] .. ' has a deadline and no facts'
    end
  end
end
for _, pattern in ipairs({'*:changes', '*:student*', '*:leader', '*:assignment', '*:admitted',
  '*:plan', '*:desired', '*:events', '*:manager:*', 'managers'})
do
  for _, key in ipairs(redis.call('KEYS', 'edl:' .. pattern)) do
    if redis.call('PTTL', key) < 0 then bad[#bad + 1] = key .. ' has no expiry' end
  end
end
return bad
"""


def audit(client: Any) -> list[str]:
    """Describe each key that nothing would ever remove."""
    found: list[str] = client.eval(AUDIT, 0)
    return found


def live(registry: Registry, number: int, at_work: int) -> None:
    """Register, beat and leave as fast as possible, until killed; say each beat at `at_work`."""
    incarnation = 0
    while True:
        incarnation += 1
        facts = {"incarnation": str(incarnation), "address": "h:1", "state": "serving"}
        # Names are shared, so that processes also meet another's incarnation.
        service, name = f"s{number % 3}", f"t{number % 7}"
        of: tuple[Literal["teachers"], str, str] = ("teachers", service, name)
        try:
            registry.register(*of, facts, TTL_S)
        except Exception:  # superseded: a greater incarnation is there
            incarnation += 1000
            continue
        for beat in range(3):
            facts = {"state": f"beat{beat}"}
            renew(registry, *of, TTL_S, incarnation=incarnation, facts=facts)
            os.write(at_work, b".")
        if incarnation % 3 == 0:
            registry.leave(*of, incarnation)
        assign(registry, service, name, incarnation)


def assign(registry: Registry, service: str, name: str, incarnation: int) -> None:
    """What the managers of a service write: drains, the table, the log, the plan, students."""
    token, student = f"m{os.getpid()}#1", f"job/{name}"
    registry.request_drain(service, name)
    registry.register("managers", "", f"h:{os.getpid()}", {"incarnation": "1"}, TTL_S)
    registry.register("students", service, student, {"incarnation": "1"}, TTL_S)
    beat = MemberBeat(student, 1, {"want": "2"}, notify=True)
    registry.beat_many("students", [(service, beat)], TTL_S)
    registry.sweep("teachers", service)
    stands = registry.lead(service, token, TTL_S)
    row = Row((name,)) if incarnation % 2 else None
    term, counter = stands.table_version
    version = (term or stands.time_ms, counter + 1)
    events = [LogEntry("assigned", student, "in haste", (), (name,))]
    admitted = {name: incarnation if incarnation % 2 else None}
    registry.write(
        service, stands.fence, stands.table_version, version, {student: row}, events, admitted
    )
    registry.set_desired(service, stands.fence, 3, "in haste", events[0])
    registry.set_content_plan(
        service, StoredContentPlan("c", at="now"), registry.content_plan(service).version
    )
    plan = registry.content_plan(service)
    registry.move_content_plan(
        service, stands.fence, version, plan, LogEntry("upgrade", "c", "in haste")
    )
    if incarnation % 5 == 0:
        registry.resign(service, token)


def main(url: str, kills: int, seed: int) -> int:
    rng = random.Random(seed)
    registry = Registry(RedisStore(url, timeout_s=DEADLINE_S))
    client = redis.Redis.from_url(url, decode_responses=True, protocol=2)
    registry.register("managers", "", "h:1", {"incarnation": "1"}, TTL_S)  # loads the scripts
    renew(registry, "managers", "", "h:1", TTL_S, incarnation=1)
    registry.leave("managers", "", "h:1")
    registry.register("teachers", "s0", "t0", {"incarnation": "0"}, TTL_S)
    assign(registry, "s0", "t0", 1)
    registry.resign("s0", f"m{os.getpid()}#1")
    for start in range(0, kills, AT_ONCE):
        ends = {}
        for number in range(start, min(start + AT_ONCE, kills)):
            heard, at_work = os.pipe()
            pid = os.fork()
            if pid == 0:
                live(registry, number, at_work)
            os.close(at_work)
            os.read(heard, 1)  # however busy the machine is, it is killed at work
            os.close(heard)
            ends[pid] = time.monotonic() + rng.uniform(0, MAX_LIFE_S)
        for pid, end in sorted(ends.items(), key=lambda item: item[1]):
            time.sleep(max(0.0, end - time.monotonic()))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            if bad := audit(client):
                print("found:", *bad)
                return 1
    print(f"killed {kills}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))

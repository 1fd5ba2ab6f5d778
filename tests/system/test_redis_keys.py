"""Whenever a teacher or a manager dies, nothing of it stays in Redis for ever."""

from __future__ import annotations

import random
from contextlib import ExitStack, closing
from typing import Any

import pytest
from redis import Redis

from edl.coordinator.embedded import start_embedded
from edl.coordinator.registry import connect
from edl.coordinator.registry.schema import lease_set, service_key
from edl.runtime.supervise import python_command, start
from edl.tests.distill_reader.trainer_program import EXIT_CODES, SIGNALS
from edl.tests.runtime.programs import wait_gone
from edl.tests.scripted_teacher import ScriptedTeacher
from edl.tests.system.coordinator_process import SERVICE, Members, ready, serve
from edl.tests.system.registering import audit
from edl.tests.waiting import DEADLINE_S, wait_until


@pytest.mark.parametrize("kills", [100, pytest.param(2000, marks=pytest.mark.nightly)])
def test_no_teacher_key_without_a_deadline_at_any_moment(
    stack: ExitStack, kills: int, rng: random.Random
) -> None:
    """The killer looks after each kill, and this test looks all the time."""
    redis, url = start_embedded()
    stack.callback(redis.stop)
    client: Any = stack.enter_context(Redis.from_url(url, decode_responses=True, protocol=2))
    program = "edl.tests.system.registering"
    killer = start(python_command("killer", program, url, kills, rng.randrange(2**32)))
    stack.callback(killer.stop)
    looks = 0
    while killer.alive:
        assert audit(client) == []
        looks += 1
    assert looks > 0
    assert killer.wait() == 0, killer.tail()
    assert f"killed {kills}" in killer.tail()
    # Kills hit processes at work, not processes that are still starting.
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] > 2 * kills
    for pattern in ("edl:*:teacher:*", "edl:*:teachers"):  # the dead are gone by themselves
        wait_until(lambda p=pattern: not client.keys(p))  # type: ignore[misc]


#: Longer than the test: what is gone within it was given back.
LONG_TTL_S = 120.0
#: Half of the lease.
BOUND_S = 60.0


def test_whatever_ends_a_training_gives_its_lease_and_its_teachers_back_at_once(
    stack: ExitStack,
) -> None:
    coordinator = serve("--redis-port", 0, "--ttl", LONG_TTL_S)
    stack.callback(coordinator.stop)
    url = ready(coordinator).url
    teacher = ScriptedTeacher()
    stack.callback(teacher.stop)
    Members(url, stack).teacher("t1", teacher.address)
    registry = stack.enter_context(closing(connect(url, timeout_s=DEADLINE_S)))
    client: Any = stack.enter_context(Redis.from_url(url, decode_responses=True, protocol=2))

    def keys_of(student: str) -> int:
        """How many there are: its lease, its facts, its teachers."""
        lease = client.zscore(lease_set("students", SERVICE).deadlines, student)
        facts = client.exists(lease_set("students", SERVICE).facts + student) or None
        teachers = client.hget(service_key(SERVICE, "assignment"), student)
        return sum(one is not None for one in (lease, facts, teachers))

    program = "edl.tests.distill_reader.trainer_program"
    trainers = {}
    for ending in EXIT_CODES:
        trainers[ending] = start(python_command(ending, program, ending, url, "plain"))
        stack.callback(trainers[ending].stop)
    for ending, trainer in trainers.items():
        told = trainer.expect(r"descendants (.+)", DEADLINE_S).group(1)
        student = f"{ending.replace(' ', '-')}/0"
        if ending in SIGNALS:
            assert keys_of(student) == 3
            trainer.send_signal(SIGNALS[ending])
        assert trainer.wait(BOUND_S) == EXIT_CODES[ending], trainer.tail(50)
        wait_until(lambda name=student: keys_of(name) == 0, BOUND_S)  # type: ignore[misc]
        wait_gone([int(pid) for pid in told.split()], BOUND_S)
        log = [one.text for one in registry.events(SERVICE) if one.subject == student]
        assert any("has 1 of" in text for text in log), "it had something"
        assert log[-1] == "gone: closed its stream"
    assert audit(client) == []

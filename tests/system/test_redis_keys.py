"""Whenever a teacher or a manager dies, nothing of it stays in Redis for ever."""

from __future__ import annotations

import random
import signal
from contextlib import ExitStack
from functools import partial
from typing import Any

import psutil
import pytest
from redis import Redis

from edl.coordinator.embedded import start_embedded
from edl.coordinator.registry import connect, keys
from edl.supervise import Process, python_command, start
from edl.tests.distill_reader.trainer_program import EXIT_CODES, SIGNALS
from edl.tests.ground.programs import wait_gone
from edl.tests.scripted_teacher import ScriptedTeacher
from edl.tests.system.coordinator_process import SHORT_TTL_S, Coordinator, Members, ready, serve
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


SERVICE = "s"
#: Longer than any of these tests: what is gone within one was given back.
LONG_TTL_S = 120.0
#: All trainings start at once.
START_S = 90.0
#: Half of the long lease.
BOUND_S = 60.0


class Mesh:
    """A coordinator, one teacher, and the trainings that are started."""

    def __init__(self, ttl_s: float, stack: ExitStack) -> None:
        coordinator = serve("--redis-port", 0, "--ttl", ttl_s)
        stack.callback(coordinator.stop)
        self.coordinator: Coordinator = ready(coordinator)
        teacher = ScriptedTeacher()
        stack.callback(teacher.stop)
        Members(self.coordinator.url, stack).teacher("t1", teacher.address)
        self.registry = connect(self.coordinator.url, timeout_s=DEADLINE_S)
        stack.callback(self.registry.close)
        client = Redis.from_url(self.coordinator.url, decode_responses=True, protocol=2)
        self.client: Any = stack.enter_context(client)
        self._stack = stack

    def train(self, ending: str) -> Process:
        """Start a training that ends so, whose job has that name."""
        program = "edl.tests.distill_reader.trainer_program"
        trainer = start(python_command(ending, program, ending, self.coordinator.url, "plain"))
        self._stack.callback(trainer.stop)
        return trainer

    def keys_of(self, ending: str) -> int:
        """How many there are of its student: its lease, its facts, its teachers."""
        redis, student = self.client, student_of(ending)
        lease = redis.zscore(keys.leases("students", SERVICE), student)
        facts = redis.exists(keys.facts("students", SERVICE, student)) or None
        teachers = redis.hget(keys.assignment(SERVICE), student)
        return sum(one is not None for one in (lease, facts, teachers))

    def is_rid_of(self, ending: str) -> bool:
        return self.keys_of(ending) == 0

    def log_of(self, ending: str) -> list[str]:
        """What the mesh's log says of its student."""
        entries = self.registry.events(SERVICE)
        return [one.text for one in entries if one.subject == student_of(ending)]


def student_of(ending: str) -> str:
    return f"{ending.replace(' ', '-')}/0"


def test_whatever_ends_a_training_gives_its_lease_and_its_teachers_back_at_once(
    stack: ExitStack,
) -> None:
    mesh = Mesh(LONG_TTL_S, stack)
    trainers = {ending: mesh.train(ending) for ending in EXIT_CODES}
    for ending, trainer in trainers.items():
        told = trainer.expect(r"descendants (.+)", START_S).group(1)
        if ending in SIGNALS:
            assert mesh.keys_of(ending) == 3
            trainer.send_signal(SIGNALS[ending])
        assert trainer.wait(BOUND_S) == EXIT_CODES[ending], trainer.tail(50)
        wait_until(partial(mesh.is_rid_of, ending), BOUND_S)
        wait_gone([int(pid) for pid in told.split()], BOUND_S)
        log = mesh.log_of(ending)
        assert any(text.startswith("assigned 1 teacher") for text in log), "it had something"
        assert log[-1] == "gone: closed its stream"
    assert audit(mesh.client) == []


def test_what_is_killed_with_its_engine_is_gone_with_its_lease(stack: ExitStack) -> None:
    mesh, ending = Mesh(SHORT_TTL_S, stack), "killed with all"
    trainer = mesh.train(ending)
    trainer.expect(r"descendants (.+)", START_S)
    assert mesh.keys_of(ending) == 3
    family = [psutil.Process(trainer.pid), *psutil.Process(trainer.pid).children()]
    for number in (signal.SIGSTOP, signal.SIGKILL):  # nobody sees another one die, and takes leave
        for process in family:
            process.send_signal(number)
    wait_until(partial(mesh.is_rid_of, ending))
    assert mesh.log_of(ending)[-1] == "gone: its lease ran out, no report came in time"
    assert audit(mesh.client) == []

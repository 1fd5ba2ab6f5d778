"""However a reader ends, nothing of it stays in Redis: not its lease, not its teachers, no key."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import psutil
import pytest

from edl.coordinator.registry import keys
from edl.coordinator.registry.redis_registry import RedisRegistry
from edl.supervise import Process, python_command, start
from edl.tests.distill_reader.test_endings import EXIT_CODES, SIGNALS
from edl.tests.ground.programs import wait_for, wait_gone
from edl.tests.scripted_teacher import ScriptedTeacher
from edl.tests.system.coordinator_process import LEASES_ONLY, Coordinator, Members, ready, serve
from edl.tests.system.registering import audit

SERVICE = "s"
#: Longer than any of these tests: what is gone within one was given back.
LONG_TTL_S = 120.0
SHORT_TTL_S = 1.5
#: All trainings start at once.
START_S = 90.0
#: Much less than the long lease.
BOUND_S = 30.0
#: Of a manager, after a lease has run out.
LATE_S = 5.0


class Mesh:
    """A coordinator, one teacher, and the trainings that are started."""

    def __init__(self, ttl_s: float, undo: ExitStack) -> None:
        coordinator = serve("--redis-port", 0, *LEASES_ONLY, "--ttl", ttl_s)
        undo.callback(coordinator.stop)
        self.coordinator: Coordinator = ready(coordinator)
        teacher = ScriptedTeacher()
        undo.callback(teacher.stop)
        Members(self.coordinator.url, undo).teacher("t1", teacher.address)
        self.registry = RedisRegistry(self.coordinator.url)
        undo.callback(self.registry.close)
        self._undo = undo

    def train(self, ending: str) -> Process:
        """Start a training that ends so, whose job has that name."""
        program = "edl.tests.distill_reader.trainer_program"
        trainer = start(python_command(ending, program, ending, self.coordinator.url, "plain"))
        self._undo.callback(trainer.stop)
        return trainer

    def keys_of(self, ending: str) -> list[str]:
        """What there is of its student: its lease, its facts, its teachers."""
        redis, student = self.registry._redis, student_of(ending)
        there = {
            "lease": redis.zscore(keys.leases("students", SERVICE), student),
            "facts": redis.exists(keys.facts("students", SERVICE, student)) or None,
            "teachers": redis.hget(keys.assignment(SERVICE), student),
        }
        return [name for name, value in there.items() if value is not None]

    def is_rid_of(self, ending: str) -> bool:
        return not self.keys_of(ending)

    def log_of(self, ending: str) -> list[str]:
        """What the mesh's log says of its student."""
        entries = self.registry.events(SERVICE)
        return [one.text for one in entries if one.subject == student_of(ending)]


def student_of(ending: str) -> str:
    return f"{ending.replace(' ', '-')}/0"


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as undo:
        yield undo


def test_whatever_ends_a_training_gives_its_lease_and_its_teachers_back_at_once(
    undo: ExitStack,
) -> None:
    mesh = Mesh(LONG_TTL_S, undo)
    trainers = {ending: mesh.train(ending) for ending in EXIT_CODES}
    for ending, trainer in trainers.items():
        told = trainer.expect(r"descendants (.+)", START_S).group(1)
        if ending in SIGNALS:
            assert mesh.keys_of(ending) == ["lease", "facts", "teachers"]
            trainer.send_signal(SIGNALS[ending])
        assert trainer.wait(BOUND_S) == EXIT_CODES[ending], trainer.tail(50)
        wait_for(partial(mesh.is_rid_of, ending), BOUND_S)
        wait_gone([int(pid) for pid in told.split()], BOUND_S)
        log = mesh.log_of(ending)
        assert any(text.startswith("assigned 1 teacher") for text in log), "it had something"
        assert log[-1] == "gone: closed its stream"
    assert audit(mesh.registry) == []


def test_what_is_killed_with_its_engine_is_gone_with_its_lease(undo: ExitStack) -> None:
    mesh, ending = Mesh(SHORT_TTL_S, undo), "killed with all"
    trainer = mesh.train(ending)
    trainer.expect(r"descendants (.+)", START_S)
    assert mesh.keys_of(ending) == ["lease", "facts", "teachers"]
    family = [psutil.Process(trainer.pid), *psutil.Process(trainer.pid).children()]
    for number in (signal.SIGSTOP, signal.SIGKILL):  # nobody sees another one die, and takes leave
        for process in family:
            process.send_signal(number)
    wait_for(partial(mesh.is_rid_of, ending), 3 * SHORT_TTL_S + LATE_S)
    assert mesh.log_of(ending)[-1] == "gone: its lease ran out, no report came in time"
    assert audit(mesh.registry) == []

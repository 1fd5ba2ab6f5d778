"""Promise 7: without coordinator or Redis training goes on; the table heals by itself."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from edl.coordinator.embedded import start_embedded
from edl.distill_reader import DistilReader
from edl.mesh.local import COORDINATOR_READY, TEACHER_READY
from edl.supervise import Process, python_command, start
from edl.tests.ground.programs import wait_for
from edl.tests.system.conftest import GRACE_S, SPEC, TTL_S, Batches

PACE_S = 0.02 / 8
#: A TTL, a beat and, on a busy machine, the starts of a command line.
HEALED_S = GRACE_S + 5.0


class Mesh:
    """A mesh whose Redis, manager and teachers die one by one."""

    def __init__(self, ending: ExitStack) -> None:
        self._ending = ending
        self.redis, self.url = start_embedded()
        ending.callback(lambda: self.redis.stop())
        self.manager = self.start_manager()

    def start_manager(self) -> Process:
        arguments = ("coordinator", "serve", "--redis", self.url, "--ttl", str(TTL_S))
        manager = start(python_command("manager", "edl", *arguments))
        self._ending.callback(manager.stop)
        manager.expect(COORDINATOR_READY, 30)
        return manager

    def add_teacher(self, name: str) -> None:
        teacher = start(python_command(name, "edl", *SPEC.arguments(name, self.url)))
        self._ending.callback(teacher.stop)
        teacher.expect(TEACHER_READY, 60)

    def restart_redis_empty(self) -> None:
        self.redis.kill()
        self.redis.wait(5)
        self.redis, _ = start_embedded(port=int(self.url.rpartition(":")[2]))

    def table(self) -> dict[str, Any] | None:
        """The one service of `edl status --json`; None while there is no answer."""
        command = [sys.executable, "-P", "-m", "edl", "status", "--json", "--coordinator", self.url]
        done = subprocess.run(command, capture_output=True, text=True)
        services = json.loads(done.stdout)["services"] if done.returncode == 0 else []
        return dict(services[0]) if services else None

    def is_whole(self, teachers: set[str]) -> bool:
        table = self.table()
        if table is None or {t["teacher_id"] for t in table["teachers"]} != teachers:
            return False
        return [set(s["assigned"]) for s in table["students"]] == [teachers]


@pytest.fixture
def mesh(set_pace: Callable[[float], None]) -> Iterator[Mesh]:
    set_pace(PACE_S)
    with ExitStack() as ending:
        mesh = Mesh(ending)
        for name in ("a", "b"):
            mesh.add_teacher(name)
        yield mesh


def wait_until_whole(mesh: Mesh, teachers: set[str]) -> None:
    deadline = time.monotonic() + HEALED_S
    while not mesh.is_whole(teachers):
        assert time.monotonic() < deadline, f"the table is not whole: {mesh.table()}"


def test_the_manager_is_killed_and_another_takes_over(mesh: Mesh) -> None:
    source = Batches()
    with DistilReader(source, service="slow", coordinator=mesh.url, teachers_min=2) as reader:
        iterator = iter(reader)
        batches = [next(iterator) for _ in range(10)]
        wait_for(lambda: set(reader.stats.teachers) == {"a", "b"})  # one alone can have made them
        mesh.manager.kill()
        mesh.manager.wait(5)
        batches += [next(iterator) for _ in range(50)]
        assert set(reader.stats.teachers) == {"a", "b"}
        mesh.start_manager()
        wait_until_whole(mesh, {"a", "b"})
        batches += source.rest(iterator, GRACE_S + 0.5)
        assert reader.stats.resends == 0
    source.check(batches)


def test_redis_is_killed_and_comes_back_empty(mesh: Mesh) -> None:
    source = Batches()
    with DistilReader(source, service="slow", coordinator=mesh.url, teachers_min=2) as reader:
        iterator = iter(reader)
        batches = [next(iterator) for _ in range(10)]
        mesh.restart_redis_empty()
        batches += [next(iterator) for _ in range(100)]
        wait_until_whole(mesh, {"a", "b"})
        assert set(reader.stats.teachers) == {"a", "b"}
        batches += source.rest(iterator, GRACE_S + 0.5)
        assert reader.stats.resends == 0
    source.check(batches)

"""Meshes of real processes: one that all tests of a worker share, and what tests need to use it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.coordinator import connect, fetch_status
from edl.coordinator.store import open_store
from edl.distill_reader import DistilReader
from edl.mesh.local import LocalMesh, TeacherSpec
from edl.proto import coordinator_pb2 as pb
from edl.proto.arena import Array
from edl.runtime.supervise import Process, stop_all
from edl.tests.distill_reader.conftest import replies_are_awaited as replies_are_awaited
from edl.tests.system.coordinator_process import Coordinator, Members, ready, serve
from edl.tests.system.slow_network import FEATURES, MODEL, SECONDS_VARIABLE, labels_of, write_pace
from edl.tests.system.teacher_process import unique
from edl.tests.waiting import DEADLINE_S, wait_until

ROWS = 8
#: Outlasts a process that stands still for three seconds just before it renews its lease.
TTL_S = 6.0
#: More batches than any test has time for.
FOR_EVER = 1 << 40
#: With room for the largest window, so that no request is refused.
SPEC = TeacherSpec("slow", MODEL, ttl_s=TTL_S, options=("--slots", "8"))
#: Of a batch with its labels.
BATCH_BYTES = 2 * ROWS * FEATURES * 4


class Batches:
    """A re-iterable of (x, number) batches, each different and known; `labels` makes their labels.

    Without a count, an epoch goes on until `end` is called.
    """

    def __init__(
        self,
        count: int = FOR_EVER,
        shape: tuple[int, int] = (ROWS, FEATURES),
        labels: Callable[[Array], Array] = labels_of,
    ) -> None:
        self.count = count
        self._shape = shape
        self._labels = labels
        self._given = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        self._given = 0
        while self._given < self.count:
            self._given += 1
            yield self.at(self._given - 1), np.full(self._shape[0], self._given - 1)
        self.count = self._given

    def end(self, after: int = 0) -> None:
        """Let an epoch end when so many more were given; from then on `count` is what there was."""
        self.count = self._given + after

    def rest(self, iterator: Iterator[Any]) -> list[Any]:
        """End the epoch; returns what was on its way."""
        self.end()
        return list(iterator)

    def at(self, number: int) -> Any:
        values = np.arange(self._shape[0] * self._shape[1], dtype=np.float32)
        return (values + 1000 * number).reshape(self._shape)

    def check(self, batches: list[Any]) -> None:
        """Each batch once, in order, with the labels of that batch, bit for bit."""
        assert [int(numbers[0]) for _, numbers, _ in batches] == list(range(self.count))
        for x, numbers, soft in batches:
            np.testing.assert_array_equal(x, self.at(int(numbers[0])))
            np.testing.assert_array_equal(soft, self._labels(x))


def taken_until(
    iterator: Iterator[Any], condition: Callable[[], object], deadline_s: float = DEADLINE_S
) -> list[Any]:
    batches = []

    def step() -> bool:
        batches.append(next(iterator))
        return bool(condition())

    wait_until(step, deadline_s)
    return batches


def keeps_what_it_gets(
    teacher: Process, name: str, reader: DistilReader, iterator: Iterator[Any]
) -> list[Any]:
    """Stop a teacher and wait until it holds a request; returns the batches taken meanwhile.

    The reader has no canaries: a copy for a canary need not be sent again.
    """
    assert reader.config.canaries is None
    teacher.send_signal(signal.SIGSTOP)
    first = reader.stats
    told, others = first.served, 0

    def holds_one() -> bool:
        """What it had answered when it stopped may still be on its way."""
        nonlocal told, others
        stats = reader.stats
        if dict(stats.served).get(name) != dict(told).get(name):
            others = 0
        elif stats.served != told:
            others += 1
        told = stats.served
        if stats.resends + stats.hedges > first.resends + first.hedges:
            return True
        return others > 1 and dict(stats.in_flight).get(name, 0) > 0

    return taken_until(iterator, holds_one)


class Service:
    """A service of a test's own in the mesh that its worker shares; teachers are "NAME-..."."""

    def __init__(self, mesh: LocalMesh) -> None:
        self.mesh = mesh
        self.name = unique("service")
        self.url = mesh.url
        self.teachers: dict[str, Process] = {}  # by teacher_id
        self.kill, self.drain, self.suspend = mesh.kill, mesh.drain, mesh.suspend
        self.resume = mesh.resume

    def add(self, *names: str, spec: TeacherSpec = SPEC) -> list[str]:
        """Start teachers side by side and wait until each serves; returns their ids."""
        ids = [f"{self.name}-{name}" for name in names]
        for one in ids:
            spec = replace(spec, service=self.name)
            self.teachers[one] = self.mesh.start_teacher(one, spec)
        for one in ids:
            self.mesh.wait_ready(one)
        return ids

    def reader(self, source: Any, **options: Any) -> DistilReader:
        return DistilReader(source, service=self.name, coordinator=self.url, **options)

    @property
    def status(self) -> pb.ServiceStatus:
        """What a manager says of it; empty while it knows nothing."""
        services = fetch_status(self.url, self.name).services
        return services[0] if services else pb.ServiceStatus()

    def close(self) -> None:
        for process in self.teachers.values():
            if process.alive:
                process.send_signal(signal.SIGCONT)
        stop_all([process for process in self.teachers.values() if process.alive], 5.0)


@pytest.fixture(scope="session", autouse=True)
def shared_mesh(valkey_url: str) -> Iterator[LocalMesh]:
    """One manager for the tests of one worker: do not end it; see `service`."""
    words = ["--ttl", str(TTL_S)]
    with LocalMesh(redis=valkey_url, coordinator_options=words, start_timeout_s=DEADLINE_S) as mesh:
        yield mesh


@pytest.fixture(autouse=True)
def redis_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of this process outlast a Redis that stands still for longer than two seconds."""
    for function in (connect, open_store):
        monkeypatch.setattr(function, "__defaults__", (DEADLINE_S,))


@pytest.fixture
def set_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Commands the seconds per sample of every teacher of the test."""
    file = tmp_path / "seconds"

    def set_pace(seconds_per_sample: float) -> None:
        write_pace(file, seconds_per_sample)

    set_pace(0.0)
    monkeypatch.setenv(SECONDS_VARIABLE, str(file))
    return set_pace


@pytest.fixture
def service(shared_mesh: LocalMesh, set_pace: Callable[[float], None]) -> Iterator[Service]:
    """A service of the test's own in the shared mesh; the test adds its teachers."""
    service = Service(shared_mesh)
    yield service
    service.close()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    """A manager of the test's own, with a Redis of its own."""
    process = serve("--redis-port", 0)
    yield ready(process)
    process.stop()


@pytest.fixture
def members(coordinator: Coordinator, stack: ExitStack) -> Members:
    return Members(coordinator.url, stack)

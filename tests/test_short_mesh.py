"""One short training over a real mesh, in which teachers, Redis and the engine fail.

The only test of `make test` that starts a mesh. Nothing in it depends on time: each step waits for
its effect, and leases outlast a process that stands still for three seconds.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from edl.coordinator import connect
from edl.coordinator.embedded import start_embedded
from edl.distill_reader import DistilReader
from edl.mesh.local import LocalMesh, TeacherSpec
from edl.tests.faults import FaultProxy
from edl.tests.system.conftest import Batches
from edl.tests.system.slow_network import MODEL, SECONDS_VARIABLE, write_pace
from edl.tests.waiting import wait_until

TTL_S = 6.0
#: For ten processes that start on a busy machine.
DEADLINE_S = 150.0
#: About ten batches, so that what happens to teachers soon happens to the stream.
UPPER_BYTES = 10_000
SPEC = TeacherSpec("short", MODEL, ttl_s=TTL_S)


class Training:
    """Takes batches of a reader, and keeps them."""

    def __init__(self, reader: DistilReader) -> None:
        self.reader = reader
        self.batches: list[Any] = []
        self._stream: Iterator[Any] = iter(reader)

    def take(self, count: int) -> None:
        self.batches += [next(self._stream) for _ in range(count)]

    def go_on_until(self, condition: Callable[[], object]) -> None:
        def step() -> bool:
            self.take(1)
            return bool(condition())

        wait_until(step, DEADLINE_S)

    def is_stuck(self, teacher: str) -> bool:
        """Whether a teacher that stands still has a request, or had one while a batch was taken."""
        stats = self.reader.stats
        return dict(stats.in_flight).get(teacher, 0) > 0 or teacher in stats.ejected

    def has(self, *teachers: str) -> bool:
        return set(self.reader.stats.teachers) == set(teachers)

    def end(self, source: Batches) -> None:
        """Let the source end, and take what is on its way."""
        source.end()
        self.batches += self._stream


@pytest.mark.timeout(400)
def test_every_batch_arrives_once_and_in_order_whatever_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = tmp_path / "seconds_per_sample"
    write_pace(pace, 0.001)
    monkeypatch.setenv(SECONDS_VARIABLE, str(pace))
    source = Batches()
    with ExitStack() as stack:
        redis, url = start_embedded()
        stack.callback(redis.stop)
        # The proxy keeps its port while there is no Redis behind it.
        proxy = stack.enter_context(FaultProxy(url.removeprefix("redis://")))
        mesh_url = f"redis://{proxy.address}"
        mesh = stack.enter_context(
            LocalMesh(
                log_dir=tmp_path,
                start_timeout_s=DEADLINE_S,
                redis=mesh_url,
                coordinator_options=("--ttl", str(TTL_S)),
            )
        )
        registry = connect(mesh_url, timeout_s=DEADLINE_S)
        stack.callback(registry.close)
        for name in ("a", "b", "c"):
            mesh.start_teacher(name, SPEC)

        def new_reader() -> DistilReader:
            options: dict[str, Any] = {"teachers_min": 3, "upper_bytes": UPPER_BYTES}
            return DistilReader(source, service="short", coordinator=mesh_url, **options)

        with new_reader() as reader:
            training = Training(reader)
            # Before its first answer, "a" would get nothing that anybody waits for.
            training.go_on_until(lambda: all(dict(reader.stats.served).get(name) for name in "abc"))

            write_pace(pace, 0.05)  # it has work when it is killed, even if something wakes it
            mesh.suspend("a")
            training.go_on_until(lambda: training.is_stuck("a"))
            mesh.kill("a")
            write_pace(pace, 0.001)
            training.go_on_until(lambda: training.has("b", "c"))
            training.go_on_until(lambda: reader.stats.resends + reader.stats.hedges)

            redis.kill()
            redis.wait()
            redis, url = start_embedded()
            stack.callback(redis.stop)
            proxy.redirect(url.removeprefix("redis://"))
            training.take(20)

            os.kill(reader.engine_pid, signal.SIGKILL)
            training.go_on_until(lambda: reader.stats.engine_restarts and training.has("b", "c"))
            wait_until(lambda: registered(registry) == {"b", "c"})  # in the new Redis

            mesh.drain("b")
            training.go_on_until(lambda: not mesh.teachers["b"].alive and training.has("c"))
            assert mesh.teachers["b"].returncode == 0
            state, batches = reader.state_dict(), training.batches

        with new_reader() as reader:
            reader.load_state_dict(state)
            training = Training(reader)
            training.take(20)
            training.end(source)
    source.check(batches + training.batches)


def registered(registry: Any) -> set[str]:
    return {member.member for member in registry.members("teachers", "short")}

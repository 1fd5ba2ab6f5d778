"""One short training over a real mesh, in which teachers, Redis and the engine fail.

This is the only test of `make test` that starts a mesh. It does not depend on time: each step waits
for its effect, and leases survive processes that stand still for three seconds.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from edl.coordinator import connect
from edl.coordinator.embedded import start_embedded
from edl.distill_reader import DistilReader
from edl.mesh.local import LocalMesh, TeacherSpec
from edl.tests.faults import FaultProxy
from edl.tests.system.conftest import Batches, taken_until
from edl.tests.system.slow_network import MODEL, SECONDS_VARIABLE, write_pace
from edl.tests.waiting import DEADLINE_S, wait_until

TTL_S = 6.0
#: About ten batches, so that faults of teachers soon affect the stream.
UPPER_BYTES = 10_000
SPEC = TeacherSpec("short", MODEL, ttl_s=TTL_S)


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

        batches: list[Any] = []
        with new_reader() as reader:
            stream = iter(reader)

            def go_on_until(condition: Callable[[], object]) -> None:
                batches.extend(taken_until(stream, condition, DEADLINE_S))

            def has(*teachers: str) -> bool:
                return set(reader.stats.teachers) == set(teachers)

            def is_stuck(teacher: str) -> bool:
                """Whether the suspended teacher has a request, or was ejected because of one."""
                stats = reader.stats
                return dict(stats.in_flight).get(teacher, 0) > 0 or teacher in stats.ejected

            # Before its first answer, "a" would only get requests that nothing waits for.
            go_on_until(lambda: all(dict(reader.stats.served).get(name) for name in "abc"))

            write_pace(pace, 0.05)  # "a" has work when it is killed, even if something resumes it
            mesh.suspend("a")
            go_on_until(lambda: is_stuck("a"))
            mesh.kill("a")
            write_pace(pace, 0.001)
            go_on_until(lambda: has("b", "c"))
            go_on_until(lambda: reader.stats.resends + reader.stats.hedges)

            redis.kill()
            redis.wait()
            redis, url = start_embedded()
            stack.callback(redis.stop)
            proxy.redirect(url.removeprefix("redis://"))
            batches += [next(stream) for _ in range(20)]

            os.kill(reader.engine_pid, signal.SIGKILL)
            go_on_until(lambda: reader.stats.engine_restarts and has("b", "c"))
            wait_until(lambda: registered(registry) == {"b", "c"})  # in the new Redis

            mesh.drain("b")
            go_on_until(lambda: not mesh.teachers["b"].alive and has("c"))
            assert mesh.teachers["b"].returncode == 0
            state = reader.state_dict()

        with new_reader() as reader:
            reader.load_state_dict(state)
            stream = iter(reader)
            batches += [next(stream) for _ in range(20)]
            batches += source.rest(stream)
    source.check(batches)


def registered(registry: Any) -> set[str]:
    return {member.member for member in registry.members("teachers", "short")}

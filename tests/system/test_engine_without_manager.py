"""Promise 7 at its hardest: coordinator and Redis are gone, and then the engine dies, too."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from edl.distill_reader import DistilReader
from edl.mesh.local import LocalMesh
from edl.tests.ground.programs import wait_for
from edl.tests.system.conftest import Batches, add_teachers

#: Far less than the time after which a reader without a teacher gives up.
PAUSE_S = 8.0


def test_the_next_engine_goes_on_with_the_teachers_of_the_one_that_died(
    mesh: LocalMesh, set_pace: Callable[[float], None]
) -> None:
    add_teachers(mesh, "a", "b")
    source = Batches(120)
    with DistilReader(
        source, service="slow", coordinator=mesh.url, teachers_min=2, upper_bytes=4096
    ) as reader:
        iterator = iter(reader)
        batches = [next(iterator) for _ in range(20)]
        wait_for(lambda: set(reader.stats.teachers) == {"a", "b"})
        mesh.coordinator.kill()
        for death in (1, 2):  # the second engine knows them from the first one alone
            batches += [next(iterator) for _ in range(20)]
            os.kill(reader.engine_pid, signal.SIGKILL)
            killed_at = time.monotonic()
            batches += [next(iterator) for _ in range(20)]  # more than the buffer holds
            assert time.monotonic() - killed_at < PAUSE_S
            assert reader.stats.engine_restarts == death
            wait_for(lambda: set(reader.stats.teachers) == {"a", "b"})
        batches += iterator
    source.check(batches)

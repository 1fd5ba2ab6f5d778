"""Promises 1, 7 and 9 with real processes: whatever dies, the stream is the one without deaths."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from edl.distill_reader import DistilReader
from edl.mesh.local import LocalMesh
from edl.tests.ground.programs import wait_for
from edl.tests.system.conftest import SPEC, Batches, add_teachers
from edl.tests.system.slow_network import FEATURES

#: A batch of 8 takes a tenth of a second.
PACE_S = 0.1 / 8
#: In the buffer, inputs and labels, or somewhat less.
BATCH_BYTES = 2 * 8 * FEATURES * 4
#: Where a test asserts that something took no more than twice as long.
LONG_TTL_S = 5.0


def reader_over(mesh: LocalMesh, source: Batches, **options: Any) -> DistilReader:
    return DistilReader(source, service="slow", coordinator=mesh.url, **options)


def busy_teacher(reader: DistilReader) -> str:
    """A teacher that has requests in flight, once there is one."""
    busy: list[str] = []

    def found() -> bool:
        busy[:] = [name for name, count in reader.stats.in_flight if count]
        return bool(busy)

    wait_for(found)
    return busy[0]


@pytest.mark.serial
@pytest.mark.parametrize("spare", ["assigned", "not assigned"])
def test_a_killed_teachers_batches_are_answered_within_a_second(
    mesh: LocalMesh, set_pace: Callable[[float], None], spare: str
) -> None:
    add_teachers(mesh, "a", "b")
    set_pace(PACE_S)
    source = Batches(40)
    wanted = 2 if spare == "assigned" else 1
    with reader_over(mesh, source, teachers_min=wanted, teachers_max=2) as reader:
        iterator = iter(reader)
        batches = [next(iterator) for _ in range(10)]
        victim = busy_teacher(reader)
        mesh.kill(victim)
        killed_at = time.monotonic()
        wait_for(lambda: reader.stats.resends > 0)
        # The other may have two batches of its own before the victim's two.
        batches += [next(iterator) for _ in range(4)]
        assert time.monotonic() - killed_at < 1.0
        batches += iterator
        assert reader.stats.resends <= 2 + reader.config.window
    source.check(batches)


@pytest.mark.serial
def test_resends_are_not_held_back_by_a_full_buffer(
    mesh: LocalMesh, set_pace: Callable[[float], None]
) -> None:
    add_teachers(mesh, "a", "b")
    set_pace(PACE_S)
    source = Batches(20)
    # Some labels put the volume above ut, while both teachers have windows full of others.
    full = {"upper_bytes": 6 * BATCH_BYTES, "lower_bytes": 0, "window": 4, "window_max": 4}
    with reader_over(mesh, source, teachers_min=2, **full) as reader:
        iterator = iter(reader)
        wait_for(lambda: reader.stats.state == "blocked" and len(reader.stats.teachers) == 2)
        yielded = reader.stats.yielded
        mesh.kill(busy_teacher(reader))
        killed_at = time.monotonic()
        wait_for(lambda: reader.stats.resends > 0 and not any(n for _, n in reader.stats.in_flight))
        assert time.monotonic() - killed_at < 1.0
        assert reader.stats.state == "blocked", "nothing was taken: the buffer is still full"
        assert reader.stats.yielded == yielded, "no new batch was pulled"
        source.check(list(iterator))


def test_a_drained_teacher_costs_no_resend(
    mesh: LocalMesh, set_pace: Callable[[float], None]
) -> None:
    add_teachers(mesh, "a", "b")
    set_pace(PACE_S / 4)
    source = Batches(120)
    with reader_over(mesh, source, teachers_min=2, upper_bytes=10_000) as reader:
        batches = []
        for batch in reader:
            batches.append(batch)
            if len(batches) == 30:
                mesh.drain("a")
        assert mesh.teachers["a"].wait(10) == 0
        assert reader.stats.resends == 0
    source.check(batches)


def test_a_killed_predictor_and_a_killed_engine_lose_nothing(
    mesh: LocalMesh, set_pace: Callable[[float], None]
) -> None:
    add_teachers(mesh, "a")
    set_pace(PACE_S / 10)
    source = Batches(150)
    batches = []
    with reader_over(mesh, source, upper_bytes=10_000) as reader:
        for batch in reader:
            batches.append(batch)
            if len(batches) == 40:
                predictor_of(mesh, "a").kill()
            if len(batches) == 90:
                os.kill(reader.engine_pid, signal.SIGKILL)
        assert reader.stats.engine_restarts == 1
    assert mesh.teachers["a"].alive
    source.check(batches)


def test_a_suspended_teacher_is_left_after_its_ttl_and_taken_back(
    set_pace: Callable[[float], None], tmp_path: Path
) -> None:
    set_pace(PACE_S / 4)
    source = Batches()
    batches = []
    with ExitStack() as ending:
        options = ["--ttl", str(LONG_TTL_S)]
        mesh = ending.enter_context(LocalMesh(log_dir=tmp_path, coordinator_options=options))
        for name in "ab":
            mesh.start_teacher(name, replace(SPEC, ttl_s=LONG_TTL_S))
        for name in "ab":
            mesh.wait_ready(name)
        reader = ending.enter_context(reader_over(mesh, source, teachers_min=2, upper_bytes=10_000))
        iterator = iter(reader)
        batches += [next(iterator) for _ in range(10)]
        victim = busy_teacher(reader)
        mesh.suspend(victim)
        stopped_at = time.monotonic()
        while reader.stats.resends + reader.stats.hedges == 0:
            batches.append(next(iterator))
        assert time.monotonic() - stopped_at < 2 * LONG_TTL_S
        while victim in reader.stats.teachers:
            batches.append(next(iterator))
        mesh.resume(victim)
        while victim not in reader.stats.teachers:
            batches.append(next(iterator))
        batches += source.rest(iterator)
    source.check(batches)


def predictor_of(mesh: LocalMesh, teacher: str) -> psutil.Process:
    children = psutil.Process(mesh.teachers[teacher].pid).children()
    return next(child for child in children if "edl.teacher.predictor" in child.cmdline())

"""A teacher's door that is shut: who is inside finishes, and who comes finds another way."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from edl.errors import TeacherLost
from edl.tests.ground.programs import wait_for
from edl.tests.teacher.bench import WAIT_S
from edl.tests.teacher.door.callers import Make, Settle, X, inside

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets without a file")


def test_a_stop_answers_who_is_inside_and_waits_for_nobody_idle(make: Make, settle: Settle) -> None:
    bench = make()
    neighbour, idle = settle(bench), settle(bench)
    idle.infer()
    within, go = threading.Event(), threading.Event()

    def wait_within() -> None:
        within.set()
        go.wait(WAIT_S)

    bench.labeller.before = wait_within
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(neighbour.infer)
        assert within.wait(WAIT_S)
        stopping = pool.submit(bench.server.stop, WAIT_S)
        wait_for(lambda: inside(bench) == 1)
        go.set()
        assert asked.result(WAIT_S) == (X * 2).tobytes()
        stopping.result(WAIT_S / 4)
    with pytest.raises(TeacherLost):
        idle.infer()


def test_a_door_that_is_shut_is_passed_by(make: Make, settle: Settle) -> None:
    bench = make()
    neighbour = settle(bench)
    door = neighbour.client._door
    assert door is not None
    door._open_line = _refuse
    assert neighbour.infer() == (X * 2).tobytes()
    assert neighbour.client._door is None
    assert inside(bench) == 0


def _refuse(_: float) -> Any:
    raise ConnectionRefusedError("nobody is there")


def test_a_door_that_shuts_lets_those_inside_finish(make: Make, settle: Settle) -> None:
    bench = make(slots=8)
    neighbour = settle(bench)
    within, go = threading.Event(), threading.Event()

    def wait_within() -> None:
        within.set()
        go.wait(WAIT_S)

    bench.labeller.before = wait_within
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(neighbour.infer)
        assert within.wait(WAIT_S)
        bench.labeller.before = lambda: None
        door = neighbour.client._door
        assert door is not None
        door._open_line = _refuse
        assert neighbour.infer() == (X * 2).tobytes()
        assert neighbour.client._door is None
        go.set()
        assert first.result(WAIT_S) == (X * 2).tobytes()

"""At 10,000 teachers and 1,000 students: one change within 50 ms, a rebuild within a second."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from edl.scheduler.assignment import (
    AssignmentEvent,
    AssignmentState,
    StudentGone,
    StudentReported,
    TeacherDown,
    TeacherUp,
    reduce,
)

pytestmark = pytest.mark.serial

TEACHERS, STUDENTS = 10_000, 1_000
CHANGE_S, REBUILD_S = 0.05, 1.0


def least_cpu_s(act: Callable[[], object], times: int) -> float:
    """CPU seconds of the quickest of several runs: what it takes when nothing is in the way."""
    taken = []
    for _ in range(times):
        began = time.process_time()
        act()
        taken.append(time.process_time() - began)
    return min(taken)


def pool(speeds: tuple[float, ...], want: int) -> list[AssignmentEvent]:
    return [
        *(TeacherUp(f"t{i}", 1, speeds[i % len(speeds)]) for i in range(TEACHERS)),
        *(StudentReported(f"job{i // 4}/{i % 4}", want, priority=i % 3) for i in range(STUDENTS)),
    ]


@pytest.mark.parametrize("speeds", [(100.0,), (100.0, 100.0, 400.0, 50.0)])
@pytest.mark.parametrize("want", [8, 16])
def test_one_change_and_a_rebuild_are_quick(speeds: tuple[float, ...], want: int) -> None:
    events = pool(speeds, want)
    assert least_cpu_s(lambda: reduce(AssignmentState(), events, 0.0), 2) <= REBUILD_S
    state, _ = reduce(AssignmentState(), events, 0.0)
    changes: list[Callable[[int], AssignmentEvent]] = [
        lambda i: TeacherUp(f"new{i}", 1, 100.0),
        lambda i: TeacherDown(f"t{77 + i}", lost=True),
        lambda i: StudentReported(f"job{3 + i}/1", 3 * want),
        lambda i: StudentReported(f"new{i}/0", want, priority=9),
        lambda i: StudentGone(f"job{50 + i}/0"),
    ]
    for change in changes:
        taken = []
        for number in range(5):  # one after another, as they come
            began = time.process_time()
            state, _ = reduce(state, [change(number)], 1.0)
            taken.append(time.process_time() - began)
        assert min(taken) <= CHANGE_S, f"{change(0)}: {min(taken):.3f} s"


def test_reports_that_say_nothing_new_cost_little() -> None:
    state, _ = reduce(AssignmentState(), pool((100.0,), 12), 0.0)
    reports = [StudentReported(f"job{i // 4}/{i % 4}", 12, priority=i % 3) for i in range(STUDENTS)]
    assert reduce(state, reports, 1.0) == (state, ())
    assert least_cpu_s(lambda: reduce(state, reports, 1.0), 5) <= CHANGE_S

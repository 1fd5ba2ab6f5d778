"""`edl bench mesh` measures real teachers with a real reader, and its goals can fail."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, Self

import pytest

from edl.benchmarks import mesh
from edl.benchmarks.pacing import Repeated, batch, streams
from edl.benchmarks.pacing.changes import n_training, suspended
from edl.benchmarks.pacing.streams import Share, share, straggler, windows_s
from edl.benchmarks.pacing.student import PacedStudent
from edl.benchmarks.pacing.teachers import paced, start_teachers
from edl.benchmarks.report import Estimate
from edl.distill_reader import ReaderStats

STEP_S = 0.01


def test_a_paced_student_takes_its_time_and_makes_up_for_none() -> None:
    late_s = 3 * STEP_S

    def source() -> Iterator[int]:
        yield from range(3)
        time.sleep(late_s)  # the source is slow, once
        yield from range(3)

    student = PacedStudent(STEP_S)
    student.train(source())
    gaps_s = [later_s - earlier_s for earlier_s, later_s in pairwise(student.took_s)]
    assert min(gaps_s) >= 0.99 * STEP_S
    assert gaps_s[2] >= STEP_S + late_s
    assert student.waited_s[3] >= late_s
    assert student.batch_s(skipped=0) >= STEP_S + late_s / 5


def test_a_student_without_a_pace_takes_what_is_there() -> None:
    student = PacedStudent(0.0)
    student.train(Repeated(batch(), count=100))
    assert len(student.took_s) == 100
    assert student.batch_s(skipped=0) < STEP_S


def test_windows_begin_behind_what_is_skipped() -> None:
    student = PacedStudent(1.0, took_s=[0.0, 5.0, 6.0, 8.0, 9.0, 12.0, 13.0])
    assert list(windows_s(student, skipped=1, per_window=2)) == [3.0, 4.0]


@pytest.mark.serial
def test_a_reader_gets_most_of_what_its_teachers_give() -> None:
    with ExitStack() as ending:
        addresses = [address for address, _ in start_teachers(ending, [paced(0.04)] * 2)]
        found = share(addresses, teacher_s=0.04, step_s=0.01, window_s=0.1)
    assert found.possible_per_s == pytest.approx(400)
    assert 0.3 < found.part.value < 1.1
    assert found.waited_s > 0


@pytest.mark.serial
@pytest.mark.parametrize(("ready", "part"), [((30, 30), 1.0), ((30, 40), 1.0), ((30, 15), 0.5)])
def test_what_was_labelled_before_the_windows_does_not_count(
    monkeypatch: pytest.MonkeyPatch, ready: tuple[int, int], part: float
) -> None:
    figures = iter(ready)

    class Reserve:
        """A reader that has every batch there at once."""

        def __init__(self, source: Iterable[object], **_: object) -> None:
            self._source = source

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            assert next(figures, None) is None, "looked at twice"

        def __iter__(self) -> Iterator[object]:
            return iter(self._source)

        @property
        def stats(self) -> ReaderStats:
            return ReaderStats(ready=next(figures))

    monkeypatch.setattr(streams, "DistilReader", Reserve)
    found = share(["a", "b"], teacher_s=0.01, step_s=0.005, window_s=0.01)  # 30 batches
    assert found.part.value == pytest.approx(part, rel=0.3)


@pytest.mark.serial
def test_a_suspended_teacher_is_waited_for_no_longer_than_it_is_suspended() -> None:
    stop_s = 0.5
    wait_s = suspended(0.02, 2, 0.02, volume_s=0.2, stop_s=stop_s, times=1)
    assert 0 < wait_s < stop_s + 2.0  # a busy machine


@pytest.mark.nightly  # a minute and a half
def test_the_slower_the_more_and_the_real_are_measured() -> None:
    assert 0.5 < straggler(0.02, others=2, times_slower=4).part.value < 1.1
    assert 0.5 < n_training(0.1, needed=3, spares=1, window_s=0.3).part.value < 1.1
    assert 0.7 < mesh.step(rows=2, batches=1).value < 1.5


@pytest.mark.parametrize(("part", "pause_s", "cost"), [(1.0, 0.1, 1.0), (0.9, 2.0, 1.1)])
def test_every_case_has_its_goal(
    monkeypatch: pytest.MonkeyPatch, part: float, pause_s: float, cost: float
) -> None:
    def found(*_: Any, **__: Any) -> Share:
        return Share(100.0, Estimate(part, part, part), 0.1)

    for name in ("share", "straggler", "n_training"):
        monkeypatch.setattr(mesh, name, found)
    monkeypatch.setattr(mesh, "suspended", lambda *_, **__: pause_s)
    monkeypatch.setattr(mesh, "step", lambda **_: Estimate(cost, cost, cost))
    monkeypatch.setattr(mesh, "start_teachers", lambda *_: [("address", None)])
    report = mesh.run(quick=False)
    assert len(report.rows) == len(mesh.PACES) * len(mesh.CASES) + 2
    assert len(report.goals) == len(report.rows) + 2
    assert {goal.holds for goal in report.goals} == {part == 1.0}
    emulated = [goal.name for goal in report.goals if "MobileNet" not in goal.name]
    assert all(name.startswith("emulated") for name in emulated)
    fewer = mesh.run(quick=True).goals
    assert {goal.name for goal in fewer} < {goal.name for goal in report.goals}

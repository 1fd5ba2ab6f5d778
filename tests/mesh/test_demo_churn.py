"""The demo's teacher churn, and its check of the stream that students receive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pytest

from edl.distill_reader import ReaderStats
from edl.mesh.demo.modes import StreamCheck, StreamSummary
from edl.mesh.demo.teacher_churn import MAX_STATS_AGE_S, TeacherChurn


class Mesh:
    """Records what is done to it, and how the reader sees it."""

    def __init__(self) -> None:
        self.now, self.done = 0.0, Mock()
        self.stats: dict[str, Any] = {"teachers": ("a", "b")}
        self.works(1, 2)
        self.churn = TeacherChurn(
            suspend=self.done.hold,
            resume=self.done.resume,
            kill=self.done.kill,
            start=self.done.start,
            replacement="c",
            batches=90,
            say=lambda text: None,
            clock=lambda: self.now,
        )

    def works(self, a: int, b: int) -> None:
        self.stats["in_flight"] = (("a", a), ("b", b))

    def batch(self, number: int, wait_s: float = 0.0) -> None:
        self.now += wait_s
        self.churn.update(number, ReaderStats(**self.stats))

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.churn.events]


@pytest.mark.parametrize("sent_again", ["resends", "hedges"])
def test_a_teacher_is_killed_and_replaced(sent_again: str) -> None:
    mesh = Mesh()
    mesh.batch(35)
    assert mesh.done.mock_calls == []
    mesh.batch(36)
    assert mesh.done.mock_calls == [call.hold("b")], "the busiest"
    mesh.batch(37, MAX_STATS_AGE_S)
    assert mesh.done.mock_calls[-1] == call.kill("b")
    mesh.batch(38)
    assert mesh.kinds == ["kill"]
    mesh.stats[sent_again] = 2
    mesh.batch(39)
    assert mesh.done.mock_calls[-1] == call.start("c")
    assert mesh.churn.replacement_pending
    mesh.stats["teachers"] = ("a", "c")
    mesh.batch(70, 2.0)
    assert not mesh.churn.replacement_pending
    assert mesh.kinds == ["kill", "resent", "start", "join"]
    assert [event.batch for event in mesh.churn.events] == [37, 39, 39, 70]
    assert mesh.churn.events[-1].at_s == pytest.approx(2.0 + MAX_STATS_AGE_S)
    mesh.batch(90)
    assert len(mesh.done.mock_calls) == 3


def test_a_new_teacher_is_started_once_even_if_nothing_is_sent_again() -> None:
    mesh = Mesh()
    mesh.done.start.side_effect = RuntimeError
    mesh.batch(36)
    mesh.batch(37, MAX_STATS_AGE_S)
    mesh.batch(59)
    assert mesh.kinds == ["kill"]
    with pytest.raises(RuntimeError):
        mesh.batch(60)  # though nothing was sent again
    mesh.batch(61)
    assert mesh.kinds == ["kill", "start"]
    mesh.done.start.assert_called_once_with("c")


def test_a_teacher_dies_with_work_in_hand() -> None:
    mesh = Mesh()
    mesh.works(0, 0)  # the buffer is full
    mesh.batch(36)
    assert mesh.done.mock_calls == []
    mesh.works(1, 2)
    mesh.batch(37)
    mesh.works(0, 0)
    mesh.batch(38, MAX_STATS_AGE_S / 2)  # the statistics are older than the hold
    assert mesh.done.mock_calls == [call.hold("b")]
    mesh.batch(39, MAX_STATS_AGE_S)
    assert mesh.done.mock_calls == [call.hold("b"), call.resume("b")]
    mesh.works(1, 0)
    mesh.batch(40)
    mesh.batch(41, MAX_STATS_AGE_S)
    assert mesh.done.mock_calls[2:] == [call.hold("a"), call.kill("a")]
    mesh = Mesh()
    mesh.works(0, 0)
    mesh.batch(53)
    assert mesh.done.mock_calls == []
    mesh.batch(54)  # late, one dies that has none
    mesh.batch(55, MAX_STATS_AGE_S)
    assert mesh.kinds == ["kill"]


def test_a_late_update_takes_every_step_that_is_due() -> None:
    mesh = Mesh()
    mesh.stats["resends"] = 1
    mesh.batch(88)
    mesh.batch(89, MAX_STATS_AGE_S)
    assert mesh.kinds == ["kill", "resent", "start"]


def batch(number: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(number)
    image = rng.integers(0, 256, (4, 1, 2, 2)).astype(np.uint8)
    return image, rng.integers(0, 10, 4), np.array([number]), rng.normal(size=(4, 3))


def summary_of(batches: Sequence[tuple[Any, ...]]) -> StreamSummary:
    check = StreamCheck()
    for _ in check.watch(batches):
        pass
    return check.summary


@pytest.mark.parametrize(
    ("numbers", "duplicates", "out_of_order"),
    [("0123", 0, 0), ("0112", 1, 1), ("0213", 0, 1), ("0120", 1, 1)],
)
def test_counts_repetitions_and_disorder(numbers: str, duplicates: int, out_of_order: int) -> None:
    summary = summary_of([batch(int(number)) for number in numbers])
    assert summary.batches == 4
    assert (summary.duplicates, summary.out_of_order) == (duplicates, out_of_order)


def test_another_label_or_another_order_is_another_hash() -> None:
    whole = summary_of([batch(0), batch(1)]).sha256
    image, label, number, soft = batch(1)
    wrong = soft.copy()
    wrong[3, 2] = np.nextafter(wrong[3, 2], 9)
    others = ([batch(0), (image, label, number, wrong)], [batch(1), batch(0)], [batch(0)])
    assert whole not in {summary_of(other).sha256 for other in others}

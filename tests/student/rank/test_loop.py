"""The training loop of one rank without data or gradients, and the shares that ranks agree on."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from edl.runtime.errors import PeerLost
from edl.scheduler.students.agreement import RowShares
from edl.student.feeding import DirectReader, UnshardedSource
from edl.student.frameworks.groups import SingleRankGroup
from edl.student.job.batches import Parts
from edl.student.messages import Order
from edl.student.rank import reporting
from edl.student.rank.learner import CompletedStep, TrainingPosition
from edl.student.rank.loop import Loop
from edl.student.rank.prefetcher import END_OF_EPOCH, MARGIN, BatchPrefetcher, Shares
from edl.student.rank.reporting import RankReporter
from edl.student.settings import TrainSettings
from edl.tests.waiting import DEADLINE_S

BATCH = Parts((), None, {}, None, 4)


class Trained:
    """A loop over epochs of so many batches; its other parts are mocks.

    Args:
        batches: of each epoch.
        evaluates: whether an epoch's end brings something new.
        leave_at: a step after which the rank is to leave.
        began: the step that the generation begins with.
        evaluated: the step of the last evaluation before.
    """

    def __init__(
        self,
        batches: Sequence[int],
        evaluates: bool,
        leave_at: int | None = None,
        began: int = 0,
        evaluated: int = 0,
        **options: Any,
    ) -> None:
        self.batches, self.position = list(batches), TrainingPosition(began, 0, evaluated)
        self.left: list[Any] = []
        self.saved: list[int] = []
        self.waited_at_begin: list[bool] = []
        self.calls: list[str] = []
        group: Any = Mock(wraps=SingleRankGroup(), world=1, rank=0)
        group.gather.side_effect = self.gather
        others: Any = Mock(source_s=0.0, group=group)
        others.begin.side_effect = self.begin
        others.take.side_effect = lambda timeout_s: self.left.pop() if self.left else END_OF_EPOCH
        others.parts.return_value = BATCH
        others.backward.return_value = {}
        others.save.side_effect = self.save
        others.epoch_done.return_value = evaluates
        shares = Shares(RowShares.equal(4, 1), 0)
        leaves, due = lambda: self.position.step == leave_at, lambda step: step % 2 == 0
        self.loop = Loop(others, others, shares, others, leaves, due, self.position, **options)
        self.ends = self.loop.run()

    def save(self) -> None:
        self.calls.append("save")
        self.saved.append(self.position.step)

    def gather(self, numbers: Sequence[float]) -> list[tuple[float, ...]]:
        self.calls.append("gather")
        return [tuple(numbers)]

    def begin(self) -> None:
        self.waited_at_begin.append(self.loop.waits)
        self.left = [BATCH] * self.batches.pop(0)


@pytest.mark.parametrize(
    ("batches", "evaluates", "options", "ends", "saved"),
    [
        ([9], False, {"steps": 4}, "finished", [2, 4]),
        ([9], True, {"steps": 4}, "finished", [2, 4, 4]),  # at last with what evaluation found
        ([9], False, {"steps": 5}, "finished", [2, 4, 5]),
        ([3, 3], False, {"epochs": 2}, "finished", [2, 4, 6]),
        ([4, 4], False, {"epochs": 2, "leave_at": 4}, "left", [2, 4]),
        # The change of the world that it has begun with is in no other checkpoint.
        ([0], False, {"epochs": 1, "leave_at": 0}, "left", [0]),
        # The checkpoint was taken before the last evaluation.
        ([0], True, {"epochs": 1, "began": 6}, "finished", [6]),
        ([], True, {"steps": 6, "began": 6, "evaluated": 3}, "finished", [6]),
        ([], True, {"steps": 6, "began": 6, "evaluated": 6}, "finished", []),
        ([0], False, {"epochs": 1, "began": 6}, "finished", []),
        ([0], True, {"epochs": 1}, "finished", []),
    ],
)
def test_what_was_trained_last_is_saved_once(
    batches: list[int], evaluates: bool, options: dict[str, int], ends: str, saved: list[int]
) -> None:
    trained = Trained(batches, evaluates, **options)
    assert (trained.ends, trained.saved) == (ends, saved)
    # If a rank ended first, the job would be finished, and the snapshot lost if its writer dies.
    assert not saved or "epochs" in options or trained.calls[-2:] == ["save", "gather"]


def test_a_board_that_does_not_answer_at_an_epochs_begin_is_waited_for() -> None:
    """A rank whose job board is unreachable must not look like a hanging one."""
    trained = Trained([1, 1], evaluates=False, epochs=2)
    assert trained.waited_at_begin == [True, True]
    assert not trained.loop.waits


def test_a_batch_without_rows_does_not_end_the_epoch() -> None:
    batches = [(np.ones((rows, 2), np.float32),) for rows in (4, 0, 3)]
    source = UnshardedSource(batches, seed=0, rank=0, world=1, saved=None)
    others: Any = Mock(group=SingleRankGroup())
    others.backward.return_value = {}
    others.epoch_done.return_value = False
    shares = Shares(RowShares.equal(1, 1), 0)
    prefetcher = BatchPrefetcher(DirectReader(source), source, Mock(), (), lambda leaf: leaf)
    position = TrainingPosition()
    never: Any = Mock(return_value=False)
    with closing(prefetcher):
        Loop(others, prefetcher, shares, others, never, never, position, epochs=2).run()
    assert [call.args[0].rows for call in others.backward.call_args_list] == [4, 3, 4, 3]
    assert (position.step, position.epoch) == (4, 2)
    assert source.state() == {"kind": "unsharded", "epoch": 2, "batches": 0, "mark": None}


def test_the_rate_of_steps_that_take_longer_than_its_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr(reporting, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    order, link = Order(TrainSettings("/job.py", "job", epochs=1)), Mock()
    prefetcher: Any = Mock(stats=lambda: None)
    reporter = RankReporter(order, link, Mock(), Mock(), prefetcher, TrainingPosition(), {})
    for step in (1, 2, 3):
        clock[0] += 20.0
        reporter.step_done(CompletedStep(step, 0, [], 64, 64, {}, 20.0, 0.0))
    assert link.send.call_args.args[0].samples_per_s == pytest.approx(64 / 20)


MANY = 10**6


def shares() -> Shares:
    return Shares(RowShares.equal(30, 3), 1)


def test_the_beginning_of_an_epoch_waits_for_nothing() -> None:
    mine = shares()
    mine.begin(100)
    assert [mine.rows(ordinal, MANY) for ordinal in range(64)] == [10] * 64
    assert mine.promise(100) == 163 + MARGIN


def test_rows_beyond_the_promise_wait_for_the_next_agreement() -> None:
    mine = shares()
    mine.begin(0)
    assert mine.promise(0) == MARGIN
    read: list[int] = []
    reader = threading.Thread(target=lambda: read.append(mine.rows(MARGIN + 1, MANY)))
    reader.start()
    reader.join(0.05)
    assert not read
    changed = mine.proportion
    for step in range(4):
        changed = changed.after_step(step, [0.01, 0.05, 0.01], MARGIN + 1)
    mine.set_shares(changed)
    assert mine.rows(MARGIN, MANY) == 10, "it was promised with the old shares"
    mine.promise(1)
    reader.join(DEADLINE_S)
    assert read == [changed.rows(MARGIN + 1)[1]]
    assert read[0] < 10


def test_a_waiting_reader_is_released_by_close() -> None:
    mine = shares()
    mine.begin(0)
    mine.promise(0)
    threading.Timer(0.02, mine.close).start()
    with pytest.raises(PeerLost):
        mine.rows(10 * MARGIN, MANY)

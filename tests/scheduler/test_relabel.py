"""What becomes of each batch when the teachers' model is exchanged in mid-stream."""

from __future__ import annotations

import pytest

from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger_events import (
    Answered,
    Deliver,
    Discard,
    Failed,
    Poison,
    Queued,
    Refused,
    Relabel,
    Send,
    Taken,
    TeacherJoined,
    TeacherLost,
    TeacherRevoked,
)


@pytest.fixture
def ledger() -> Ledger:
    """Batches 0 to 4: delivered, in flight, labelled, in flight, queued."""
    ledger = Ledger()
    ledger.handle(TeacherJoined("old", 4))
    for batch in range(5):
        ledger.handle(Queued(batch, 100))
    ledger.handle(Answered("old", 0, 7, 0.1))
    ledger.handle(Answered("old", 2, 7, 0.1))
    ledger.handle(TeacherRevoked("old"))
    assert ledger.in_flight_at("old") == (1, 3, 4)
    assert ledger.volume_bytes == 214
    return ledger


def exchange(ledger: Ledger) -> None:
    assert ledger.handle(Relabel()) == []
    ledger.validate()


def test_all_that_is_not_delivered_is_labelled_anew_in_order(ledger: Ledger) -> None:
    exchange(ledger)
    assert (ledger.queued, ledger.unlabelled, ledger.deliverable) == (4, 4, 1)
    assert ledger.volume_bytes == 107, "only what was delivered is held with its labels"
    sent = ledger.handle(TeacherJoined("new", 4))
    assert sent == [Send(batch, "new", 1) for batch in (1, 2, 3, 4)]
    for batch in (2, 3, 4):
        assert ledger.handle(Answered("new", batch, 9, 0.1)) == []
    out = ledger.handle(Answered("new", 1, 9, 0.1))
    assert out == [Deliver(batch) for batch in (1, 2, 3, 4)]
    assert ledger.volume_bytes == 107 + 4 * 109
    ledger.validate()


def test_what_the_old_model_answers_is_discarded(ledger: Ledger) -> None:
    exchange(ledger)
    ledger.handle(TeacherJoined("new", 4))
    assert ledger.handle(Answered("old", 1, 7, 0.1)) == [Discard(1, "old")]
    assert ledger.handle(Answered("new", 1, 9, 0.1)) == [Deliver(1)]
    assert ledger.handle(Answered("old", 3, 7, 0.1)) == [Discard(3, "old")]
    ledger.validate()


@pytest.mark.parametrize("end", [TeacherLost("old"), Failed("old", 1), Refused("old", 1, "no")])
def test_however_an_old_request_ends_it_is_over(
    ledger: Ledger, end: TeacherLost | Failed | Refused
) -> None:
    exchange(ledger)
    ledger.handle(TeacherJoined("new", 4))
    assert ledger.handle(end) == []
    assert ledger.resends == 0
    assert ledger.in_flight_at("new") == (1, 2, 3, 4)
    ledger.validate()


def test_no_batch_goes_to_a_teacher_that_is_still_at_work_on_it(ledger: Ledger) -> None:
    """Its two answers could not be told apart."""
    exchange(ledger)
    assert ledger.handle(TeacherJoined("old", 5)) == [Send(2, "old", 1)]
    assert ledger.free_windows == 1
    out = ledger.handle(Answered("old", 1, 7, 0.1))
    assert out == [Discard(1, "old"), Send(1, "old", 1)]
    ledger.validate()


def test_what_the_old_model_refused_the_new_one_may_label() -> None:
    ledger = Ledger()
    ledger.handle(TeacherJoined("old", 3))
    for batch in range(3):
        ledger.handle(Queued(batch, 100))
    ledger.handle(Refused("old", 1, "no"))  # by all there are: poison, behind batch 0
    assert ledger.unlabelled == 2
    ledger.handle(Relabel())
    ledger.validate()
    assert ledger.unlabelled == 3
    ledger.handle(TeacherLost("old"))
    out = ledger.handle(TeacherJoined("new", 3))
    assert [i.batch for i in out if isinstance(i, Send)] == [0, 1, 2]
    assert not any(isinstance(i, Poison) for i in out)
    assert ledger.handle(Answered("new", 0, 1, 0.1)) == [Deliver(0)]
    assert ledger.handle(Answered("new", 1, 1, 0.1)) == [Deliver(1)]
    ledger.handle(Taken(0))
    ledger.validate()

"""What becomes of each batch when the teachers' model is exchanged in mid-stream."""

from __future__ import annotations

import pytest

from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger.events import (
    Accept,
    Awaited,
    Cancelled,
    Deliver,
    Disbelieve,
    Discard,
    Doubt,
    Failed,
    Forgo,
    Found,
    Hedge,
    LookUp,
    Poison,
    Queued,
    Recall,
    Recalled,
    Refused,
    Relabel,
    Reset,
    Send,
    Span,
    Taken,
    TeacherJoined,
    TeacherLost,
    TeacherRevoked,
    Void,
)

from .telling import after, answer, queued, sends, whole


@pytest.fixture
def ledger() -> Ledger:
    """Batches 0 to 4: delivered, in flight, labelled, in flight, in flight."""
    ledger = Ledger()
    after(ledger, TeacherJoined("old", 4), *queued(0, 1, 2, 3, 4))
    after(ledger, answer("old", 1), answer("old", 3), TeacherRevoked("old"))
    assert ledger.in_flight_at("old") == (2, 4, 5)
    assert ledger.volume_bytes == 220
    return ledger


def test_all_that_is_not_delivered_is_labelled_anew_in_order(ledger: Ledger) -> None:
    assert after(ledger, Relabel()) == []
    assert (ledger.queued, ledger.unlabelled, ledger.deliverable) == (4, 4, 1)
    assert ledger.volume_bytes == 110, "only what was delivered is held with its labels"
    sent = after(ledger, TeacherJoined("new", 4))
    assert sent == [Send(5 + batch, "new", whole(batch), 1) for batch in (1, 2, 3, 4)]
    after(ledger, *(answer("new", request) for request in (7, 8, 9)))
    out = after(ledger, answer("new", 6))
    assert out == [Accept(6, whole(1)), *(Deliver(batch) for batch in (1, 2, 3, 4))]
    assert ledger.volume_bytes == 5 * 110


def test_what_the_old_model_answers_is_discarded(ledger: Ledger) -> None:
    after(ledger, Relabel(), TeacherJoined("new", 4))
    assert after(ledger, answer("old", 2)) == [Discard(2, "old")]
    assert after(ledger, answer("new", 6)) == [Accept(6, whole(1)), Deliver(1)]
    assert after(ledger, answer("old", 4)) == [Discard(4, "old")]


@pytest.mark.parametrize(
    "end", [TeacherLost("old"), Failed("old", 2), Refused("old", 2, "no"), Cancelled("old", 2)]
)
def test_however_an_old_request_ends_it_is_over(
    ledger: Ledger, end: TeacherLost | Failed | Refused | Cancelled
) -> None:
    after(ledger, Relabel(), TeacherJoined("new", 4))
    assert after(ledger, end, Hedge(2), Hedge(4)) == []
    assert (ledger.resends, ledger.hedges) == (0, 0)
    assert ledger.in_flight_at("new") == (6, 7, 8, 9)


def test_a_teacher_may_have_a_batch_anew_while_it_is_at_work_on_it(ledger: Ledger) -> None:
    """The request tells its two answers apart."""
    out = after(ledger, Relabel(), TeacherJoined("old", 4))
    assert out == [Send(6, "old", whole(1), 1)]
    assert after(ledger, answer("old", 2)) == [Discard(2, "old"), Send(7, "old", whole(2), 1)]
    assert after(ledger, answer("old", 6))[:2] == [Accept(6, whole(1)), Deliver(1)]


def test_what_the_old_model_refused_the_new_one_may_label() -> None:
    ledger = Ledger()
    after(ledger, TeacherJoined("old", 3), *queued(0, 1, 2))
    after(ledger, Refused("old", 2, "no"))  # by all there are: poison, behind batch 0
    assert ledger.unlabelled == 2
    after(ledger, Relabel())
    assert ledger.unlabelled == 3
    out = after(ledger, TeacherLost("old"), TeacherJoined("new", 3))
    assert [send.spans for send in sends(out)] == [whole(0), whole(1), whole(2)]
    out = after(ledger, answer("new", 5), answer("new", 6))
    assert not any(isinstance(i, Poison) for i in out)
    assert Deliver(1) in out


def test_rows_that_were_not_missing_are_missing_now() -> None:
    """They were labels of the old model."""
    ledger = Ledger()
    after(ledger, *queued(0), Queued(1, 100, 10, ()), Queued(2, 100, 10, ((3, 5),)))
    out = after(ledger, Relabel(), TeacherJoined("new", 3))
    assert [send.spans for send in sends(out)] == [whole(0), whole(1), whole(2)]


def test_a_batch_that_was_to_go_without_labels_gets_them_after_all() -> None:
    ledger = Ledger()
    after(ledger, *queued(0, 1), Forgo(1), Relabel())
    assert ledger.unlabelled == 2


class TestStored:
    """Where a store may have labels of the new model, it is asked before any teacher is."""

    def test_nothing_is_sent_before_the_store_has_spoken(self, ledger: Ledger) -> None:
        assert after(ledger, Relabel(stored=True)) == [LookUp(batch) for batch in (1, 2, 3, 4)]
        assert after(ledger, TeacherJoined("new", 4)) == []
        assert (ledger.queued, ledger.unlabelled) == (4, 4)
        assert after(ledger, Found(1)) == [Send(6, "new", whole(1), 1)]
        assert set(ledger.withheld) == {2, 3, 4}

    def test_only_missing_rows_are_sent(self, ledger: Ledger) -> None:
        after(ledger, Relabel(stored=True), TeacherJoined("new", 4))
        out = after(ledger, Found(1, ()), Found(2, ((3, 5),), 1))
        assert out == [Deliver(1), Send(6, "new", (Span(2, 3, 5),), 1)]
        assert after(ledger, answer("new", 6))[1:] == [Deliver(2)]
        assert after(ledger, Found(2), Found(9)) == [], "it is over"

    def test_what_was_found_of_another_model_is_asked_for_again(self, ledger: Ledger) -> None:
        after(ledger, Relabel(stored=True), Found(1, ()), Found(3, ()))
        assert after(ledger, Relabel(stored=True)) == [LookUp(batch) for batch in (2, 3, 4)]

    def test_a_batch_that_goes_without_waits_for_no_store(self, ledger: Ledger) -> None:
        after(ledger, Relabel(stored=True))
        assert after(ledger, Forgo(1)) == [Deliver(1)]
        assert after(ledger, Found(1), Reset(), Found(2)) == []

    def test_one_that_is_handed_back_later_is_looked_up(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("liar", 2), *queued(0), answer("liar", 1))
        assert after(ledger, Disbelieve("liar"), Relabel(stored=True)) == [Recall(0)]
        assert after(ledger, TeacherJoined("new", 2)) == []
        assert after(ledger, Recalled(0)) == [Void(0), LookUp(0)]
        assert after(ledger, Found(0, ((0, 4),))) == [Send(2, "new", (Span(0, 0, 4),), 1)]


class TestPlace:
    """The stream changes over at one batch, also where some were delivered ahead of it."""

    def test_what_was_delivered_ahead_of_one_that_comes_back_is_recalled_too(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("liar", 1), *queued(0), answer("liar", 1))
        after(ledger, TeacherJoined("honest", 2), Disbelieve("liar"), *queued(1, 2))
        after(ledger, answer("honest", 2), answer("honest", 3))
        assert ledger.deliverable == 3, "batch 0 is recalled, and not handed back yet"
        assert after(ledger, Relabel()) == [Recall(1), Recall(2)]
        out = after(ledger, Recalled(0), Taken(2), Recalled(1))
        assert [i for i in out if isinstance(i, Void)] == [Void(0), Void(1)]
        assert [send.spans for send in sends(out)] == [whole(0), whole(1)]

    def test_without_order_each_batch_stands_for_itself(self) -> None:
        ledger = Ledger(ordered=False)
        after(ledger, TeacherJoined("a", 2), *queued(0, 1), answer("a", 2))
        assert not any(isinstance(i, Recall) for i in after(ledger, Relabel()))


class TestDelivered:
    """What the student's side has of the old model stays so, or comes back as a whole."""

    @pytest.fixture
    def ledger(self) -> Ledger:
        """Batches 0 and 1 are delivered, each half by `a` and half by `b`; `c` has refused 0."""
        ledger = Ledger()
        after(ledger, TeacherJoined("c", 1), Awaited(2), *queued(0), Refused("c", 1, "no"))
        after(ledger, TeacherJoined("a", 1, 5), TeacherJoined("b", 1, 5), TeacherRevoked("c"))
        after(ledger, answer("a", 2), answer("b", 3), *queued(1), answer("a", 4), answer("b", 5))
        assert ledger.deliverable == 2
        assert ledger.makers(0) == ("a", "b")
        return ledger

    def test_no_batch_is_of_two_models(self, ledger: Ledger) -> None:
        assert after(ledger, Relabel()) == []
        assert ledger.makers(1) == ("a", "b")
        assert after(ledger, TeacherLost("a"), Disbelieve("b"), Recalled(1)) == [
            Recall(0),
            Recall(1),
            Void(1),
        ]
        out = after(ledger, TeacherJoined("new", 2))
        assert [send.spans for send in sends(out)] == [whole(1)]

    def test_the_old_model_does_not_come_back_behind_the_new_one(self, ledger: Ledger) -> None:
        after(ledger, TeacherLost("a"), TeacherLost("b"), TeacherJoined("d", 1), *queued(2))
        after(ledger, answer("d", 6), Relabel(), *queued(3), answer("d", 7))
        assert ledger.deliverable == 4
        assert after(ledger, Disbelieve("a")) == [Recall(0), Recall(1), Recall(2)]

    def test_nor_where_all_of_one_is_doubted(self, ledger: Ledger) -> None:
        after(ledger, Relabel())
        assert after(ledger, Doubt(0)) == [Recall(0), Recall(1)]

    def test_what_the_old_model_refused_is_asked_of_the_new_one(self, ledger: Ledger) -> None:
        after(ledger, Relabel(), TeacherLost("a"), TeacherLost("b"), TeacherJoined("c", 1))
        out = after(ledger, Awaited(0), Doubt(0), Recalled(0))
        assert [send.spans for send in sends(out)] == [whole(0)]

    def test_a_store_is_asked_first(self, ledger: Ledger) -> None:
        after(ledger, Relabel(stored=True), Disbelieve("b"), TeacherJoined("new", 2))
        assert after(ledger, Recalled(0)) == [Void(0), LookUp(0)]

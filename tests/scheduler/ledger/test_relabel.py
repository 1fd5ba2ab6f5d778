"""Labels that are not used: of ejected teachers, of invalidated ones, of an old model."""

from __future__ import annotations

import pytest

from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger import events as ev

from .driver import after, answer, queued, rows_sent, sends, whole


@pytest.fixture
def ledger() -> Ledger:
    """Of the liar's: 0 delivered, 2 labelled, 3 in flight; 1 is in flight at the honest one."""
    ledger = Ledger()
    after(ledger, ev.TeacherJoined("liar", 1), *queued(0), answer("liar", 1))
    after(ledger, ev.TeacherJoined("honest", 1, seconds_per_row=0.001), *queued(1, 2, 3))
    assert after(ledger, answer("liar", 3))[0] == ev.Accept(3, whole(2))
    assert (ledger.in_flight_at("honest"), ledger.in_flight_at("liar")) == ((2,), (4,))
    return ledger


class TestInvalidateLabels:
    def test_queued_labels_are_void_and_delivered_ones_recalled(self, ledger: Ledger) -> None:
        assert after(ledger, ev.Disbelieve("liar")) == [ev.Recall(0)]
        assert (ledger.queued, ledger.unlabelled, ledger.volume_bytes) == (2, 3, 110)
        assert ledger.on_trial == ("liar",)
        assert after(ledger, answer("liar", 4)) == [ev.Discard(4, "liar")]
        out = after(ledger, answer("honest", 2), answer("honest", 5), answer("honest", 6))
        assert out == [
            ev.Accept(2, whole(1)),
            ev.Deliver(1),
            ev.Send(5, "honest", whole(2), 2),
            ev.Accept(5, whole(2)),
            ev.Deliver(2),
            ev.Send(6, "honest", whole(3), 2),
            ev.Accept(6, whole(3)),
            ev.Deliver(3),
        ]

    def test_only_its_own_rows_are_labelled_anew(self) -> None:
        ledger = Ledger()
        after(ledger, ev.Queued(0, 100, 10, ((2, 10),)))
        after(ledger, ev.TeacherJoined("liar", 1, 4), ev.TeacherJoined("honest", 1, 4))
        assert after(ledger, answer("honest", 2), answer("liar", 1))[-1] == ev.Deliver(0)
        out = after(ledger, ev.Disbelieve("liar"), ev.Recalled(0))
        assert out == [ev.Recall(0), ev.Send(3, "honest", (ev.Span(0, 2, 6),), 2)]
        assert after(ledger, answer("honest", 3))[-1] == ev.Deliver(0)

    def test_single_batch_is_recalled_as_a_whole(self) -> None:
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 1), *queued(0, 1), answer("a", 1))
        assert after(ledger, ev.Doubt(0), ev.Doubt(0), ev.Doubt(1), ev.Doubt(7)) == [ev.Recall(0)]
        assert after(ledger, ev.Recalled(0), answer("a", 2))[0] == ev.Void(0)

    def test_recalled_batch_keeps_its_refusals(self) -> None:
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 1), *queued(0), ev.TeacherJoined("b", 1))
        after(ledger, ev.Refused("a", 1, "bad"), answer("b", 2), *queued(1), answer("a", 3))
        out = after(ledger, ev.Disbelieve("b"), ev.Recalled(0))
        assert out == [ev.Recall(0), ev.Void(0), ev.Poison(0, ("a: bad",))]
        ledger = Ledger(ordered=False)
        after(ledger, ev.TeacherJoined("liar", 1), *queued(0), answer("liar", 1))
        out = after(
            ledger, ev.Disbelieve("liar"), ev.Recalled(0), ev.TeacherJoined("b", 1), answer("b", 2)
        )
        assert out[-1] == ev.Deliver(0)

    def test_reset_forgets_recalls(self, ledger: Ledger) -> None:
        assert after(ledger, ev.Disbelieve("liar"), ev.Reset(), ev.Recalled(0)) == [ev.Recall(0)]

    def test_lost_teachers_labels_and_unexpected_returns(self, ledger: Ledger) -> None:
        with pytest.raises(ValueError, match="batch 0 was handed back, but nobody has recalled"):
            ledger.handle(ev.Recalled(0))
        assert after(ledger, ev.TeacherLost("liar"), ev.Disbelieve("liar")) == [ev.Recall(0)]
        assert ledger.queued == 2

    def test_whole_batch_is_labelled_anew_after_a_model_change(self) -> None:
        """Else one batch had labels of two models."""
        ledger = Ledger()
        after(ledger, *queued(0), ev.TeacherJoined("liar", 1, 5), ev.TeacherJoined("honest", 1, 5))
        after(ledger, answer("liar", 1), answer("honest", 2), ev.Disbelieve("liar"), ev.Relabel())
        assert rows_sent(after(ledger, ev.Recalled(0), ev.TeacherJoined("new", 1))) == [
            [(0, 0, 5)],
            [(0, 5, 10)],
        ]


class TestHeld:
    """Batches whose labels an engine before this one was given, and who made them."""

    def test_held_batches_are_recalled_as_a_whole(self) -> None:
        ledger = Ledger()
        after(
            ledger,
            ev.Held(0, 110, 10, makers=("honest", "liar")),
            ev.Held(1, 110, 10, 0, ("honest",)),
        )
        assert ledger.makers(0) == ("honest", "liar")
        assert after(ledger, ev.Disbelieve("liar"), ev.Disbelieve("liar")) == [ev.Recall(0)]
        assert after(ledger, ev.Recalled(0), ev.TeacherJoined("b", 1)) == [
            ev.Void(0),
            ev.Send(1, "b", whole(0), 2),
        ]
        assert after(ledger, answer("b", 1)) == [ev.Accept(1, whole(0)), ev.Deliver(0)]
        assert ledger.makers(0) == ("b",)
        assert (ledger.deliverable, ledger.volume_bytes) == (2, 230)
        ledger = Ledger()
        after(ledger, ev.Held(0, 110, 10, makers=("x", "y")))
        assert after(ledger, ev.Disbelieve("x"), ev.Disbelieve("y")) == [ev.Recall(0)]
        assert after(ledger, ev.Recalled(0), ev.TeacherJoined("b", 1))[0] == ev.Void(0)
        assert after(Ledger(), ev.Held(0, 110), ev.Disbelieve("liar")) == []


class OldModel:
    @pytest.fixture
    def ledger(self) -> Ledger:
        """Batches 0 to 4: delivered, in flight, labelled, in flight, in flight."""
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("old", 4), *queued(0, 1, 2, 3, 4))
        after(ledger, answer("old", 1), answer("old", 3), ev.TeacherRevoked("old"))
        assert ledger.in_flight_at("old") == (2, 4, 5)
        assert ledger.volume_bytes == 220
        return ledger


class TestStored(OldModel):
    """Where a store may have labels of the new model, it is asked before any teacher is."""

    def test_nothing_is_sent_before_the_lookup(self, ledger: Ledger) -> None:
        assert after(ledger, ev.Relabel(stored=True)) == [
            ev.LookUp(batch) for batch in (1, 2, 3, 4)
        ]
        assert after(ledger, ev.TeacherJoined("new", 4)) == []
        assert (ledger.queued, ledger.unlabelled) == (4, 4)
        assert after(ledger, ev.Found(1)) == [ev.Send(6, "new", whole(1), 1)]
        assert set(ledger.withheld) == {2, 3, 4}

    def test_only_missing_rows_are_sent(self, ledger: Ledger) -> None:
        after(ledger, ev.Relabel(stored=True), ev.TeacherJoined("new", 4))
        out = after(ledger, ev.Found(1, ()), ev.Found(2, ((3, 5),), 1))
        assert out == [ev.Deliver(1), ev.Send(6, "new", (ev.Span(2, 3, 5),), 1)]
        assert after(ledger, answer("new", 6))[1:] == [ev.Deliver(2)]
        assert after(ledger, ev.Found(2), ev.Found(9)) == [], "it is over"

    def test_returned_batch_is_looked_up(self) -> None:
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("liar", 2), *queued(0), answer("liar", 1))
        assert after(ledger, ev.Disbelieve("liar"), ev.Relabel(stored=True)) == [ev.Recall(0)]
        assert after(ledger, ev.TeacherJoined("new", 2)) == []
        assert after(ledger, ev.Recalled(0)) == [ev.Void(0), ev.LookUp(0)]
        assert after(ledger, ev.Found(0, ((0, 4),))) == [ev.Send(2, "new", (ev.Span(0, 0, 4),), 1)]


class TestPlace:
    """The stream changes over at one batch, also where some were delivered ahead of it."""

    def test_later_delivered_batches_are_recalled_too(self) -> None:
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("liar", 1), *queued(0), answer("liar", 1))
        after(ledger, ev.TeacherJoined("honest", 2), ev.Disbelieve("liar"), *queued(1, 2))
        after(ledger, answer("honest", 2), answer("honest", 3))
        assert ledger.deliverable == 3, "batch 0 is recalled, and not handed back yet"
        assert after(ledger, ev.Relabel()) == [ev.Recall(1), ev.Recall(2)]
        out = after(ledger, ev.Recalled(0), ev.Taken(2), ev.Recalled(1))
        assert [i for i in out if isinstance(i, ev.Void)] == [ev.Void(0), ev.Void(1)]
        assert [send.spans for send in sends(out)] == [whole(0), whole(1)]
        ledger = Ledger(ordered=False)
        after(ledger, ev.TeacherJoined("a", 2), *queued(0, 1), answer("a", 2))
        assert not any(isinstance(i, ev.Recall) for i in after(ledger, ev.Relabel()))


class TestDelivered:
    """What the student's side has of the old model stays so, or comes back as a whole."""

    @pytest.fixture
    def ledger(self) -> Ledger:
        """Batches 0 and 1 are delivered, each half by `a` and half by `b`; `c` has refused 0."""
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("c", 1), ev.Awaited(2), *queued(0), ev.Refused("c", 1, "no"))
        after(
            ledger, ev.TeacherJoined("a", 1, 5), ev.TeacherJoined("b", 1, 5), ev.TeacherRevoked("c")
        )
        after(ledger, answer("a", 2), answer("b", 3), *queued(1), answer("a", 4), answer("b", 5))
        assert ledger.deliverable == 2
        assert ledger.makers(0) == ("a", "b")
        return ledger

    def test_old_model_does_not_follow_the_new_one(self, ledger: Ledger) -> None:
        after(
            ledger, ev.TeacherLost("a"), ev.TeacherLost("b"), ev.TeacherJoined("d", 1), *queued(2)
        )
        after(ledger, answer("d", 6), ev.Relabel(), *queued(3), answer("d", 7))
        assert ledger.deliverable == 4
        assert after(ledger, ev.Disbelieve("a")) == [ev.Recall(0), ev.Recall(1), ev.Recall(2)]


class TestRelabel(OldModel):
    def test_undelivered_batches_are_labelled_anew_in_order(self, ledger: Ledger) -> None:
        assert after(ledger, ev.Relabel()) == []
        assert (ledger.queued, ledger.unlabelled, ledger.deliverable) == (4, 4, 1)
        assert ledger.volume_bytes == 110, "only what was delivered is held with its labels"
        sent = after(ledger, ev.TeacherJoined("new", 4))
        assert sent == [ev.Send(5 + batch, "new", whole(batch), 1) for batch in (1, 2, 3, 4)]
        after(ledger, *(answer("new", request) for request in (7, 8, 9)))
        out = after(ledger, answer("new", 6))
        assert out == [ev.Accept(6, whole(1)), *(ev.Deliver(batch) for batch in (1, 2, 3, 4))]
        assert ledger.volume_bytes == 5 * 110

    def test_teacher_may_get_the_batch_that_it_works_on(self, ledger: Ledger) -> None:
        """The request tells its two answers apart."""
        out = after(ledger, ev.Relabel(), ev.TeacherJoined("old", 4))
        assert out == [ev.Send(6, "old", whole(1), 1)]
        assert after(ledger, answer("old", 2)) == [
            ev.Discard(2, "old"),
            ev.Send(7, "old", whole(2), 1),
        ]
        assert after(ledger, answer("old", 6))[:2] == [ev.Accept(6, whole(1)), ev.Deliver(1)]

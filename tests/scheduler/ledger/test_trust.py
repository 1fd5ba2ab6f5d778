"""Teachers on trial, and what becomes of the labels of one that is not believed any more."""

from __future__ import annotations

import pytest

from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger.events import (
    Accept,
    Deliver,
    Disbelieve,
    Discard,
    Doubt,
    Ejected,
    Failed,
    Forgo,
    Hedge,
    Held,
    Poison,
    Queued,
    Readmitted,
    Recall,
    Recalled,
    Refused,
    Relabel,
    Reset,
    Resumed,
    Send,
    Span,
    Taken,
    TeacherJoined,
    TeacherLost,
    Void,
)

from .telling import after, answer, queued, rows_sent, whole


class TestEjected:
    def test_what_it_has_counts_and_it_gets_nothing_new(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("a", 2), *queued(0), Ejected("a"))
        assert after(ledger, *queued(1)) == []
        assert after(ledger, answer("a", 1)) == [Accept(1, whole(0)), Deliver(0)]
        assert (ledger.teachers, ledger.on_trial, ledger.usable) == (("a",), ("a",), 0)
        assert after(ledger, Readmitted("a")) == [Send(2, "a", whole(1), 1)]

    def test_joining_anew_ends_the_trial(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("a", 1), *queued(0), Failed("a", 1), Ejected("a"))
        assert after(ledger, Resumed("a")) == []
        assert after(ledger, TeacherJoined("a", 1)) == [Send(2, "a", whole(0), 2)]

    def test_one_that_rests_goes_on_resting_when_it_is_readmitted(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("a", 1), *queued(0), Failed("a", 1), Ejected("a"))
        assert after(ledger, Readmitted("a")) == []
        assert after(ledger, Resumed("a")) == [Send(2, "a", whole(0), 2)]

    def test_strangers_are_ejected_without_a_word(self) -> None:
        assert after(Ledger(), Ejected("x"), Readmitted("x"), Disbelieve("x")) == []


@pytest.fixture
def ledger() -> Ledger:
    """Of the liar's: 0 delivered, 2 labelled, 3 in flight; 1 is in flight at the honest one."""
    ledger = Ledger()
    after(ledger, TeacherJoined("liar", 1), *queued(0), answer("liar", 1))
    after(ledger, TeacherJoined("honest", 1, seconds_per_row=0.001), *queued(1, 2, 3))
    assert after(ledger, answer("liar", 3))[0] == Accept(3, whole(2))
    assert (ledger.in_flight_at("honest"), ledger.in_flight_at("liar")) == ((2,), (4,))
    return ledger


class TestDisbelieve:
    def test_labels_in_line_are_void_and_delivered_ones_recalled(self, ledger: Ledger) -> None:
        assert after(ledger, Disbelieve("liar")) == [Recall(0)]
        assert (ledger.queued, ledger.unlabelled, ledger.volume_bytes) == (2, 3, 110)
        assert ledger.on_trial == ("liar",)
        assert after(ledger, answer("liar", 4)) == [Discard(4, "liar")]
        out = after(ledger, answer("honest", 2), answer("honest", 5), answer("honest", 6))
        assert out == [
            Accept(2, whole(1)),
            Deliver(1),
            Send(5, "honest", whole(2), 2),
            Accept(5, whole(2)),
            Deliver(2),
            Send(6, "honest", whole(3), 2),
            Accept(6, whole(3)),
            Deliver(3),
        ]

    def test_every_delivered_one_is_recalled_once(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("liar", 3), *queued(0, 1, 2))
        after(ledger, *(answer("liar", request) for request in (1, 2, 3)), Taken(1))
        assert after(ledger, Disbelieve("liar")) == [Recall(0), Recall(2)]
        out = after(ledger, TeacherJoined("b", 1), Recalled(2), Recalled(0), answer("b", 4))
        assert out[-2:] == [Accept(4, whole(2)), Send(5, "b", whole(0), 2)]
        assert after(ledger, answer("b", 5))[1:] == [Deliver(0), Deliver(2)]

    def test_one_that_is_handed_back_is_first_in_line(self, ledger: Ledger) -> None:
        after(ledger, Disbelieve("liar"), answer("liar", 4))
        assert after(ledger, Recalled(0)) == [Void(0)]
        assert (ledger.deliverable, ledger.volume_bytes, ledger.head) == (0, 0, 0)
        assert after(ledger, answer("honest", 2)) == [
            Accept(2, whole(1)),
            Send(5, "honest", whole(0), 2),
        ]
        assert after(ledger, answer("honest", 5))[:3] == [
            Accept(5, whole(0)),
            Deliver(0),
            Deliver(1),
        ]
        assert ledger.labelled_by(0) == ((whole(0)[0], "honest"),)

    def test_one_that_was_consumed_is_over(self, ledger: Ledger) -> None:
        assert after(ledger, Disbelieve("liar"), Taken(0)) == [Recall(0)]
        assert after(ledger, Recalled(0), Disbelieve("liar")) == []
        assert ledger.volume_bytes == 0

    def test_only_its_own_rows_are_labelled_anew(self) -> None:
        ledger = Ledger()
        after(ledger, Queued(0, 100, 10, ((2, 10),)))
        after(ledger, TeacherJoined("liar", 1, 4), TeacherJoined("honest", 1, 4))
        assert after(ledger, answer("honest", 2), answer("liar", 1))[-1] == Deliver(0)
        assert ledger.labelled_by(0) == ((Span(0, 2, 6), "liar"), (Span(0, 6, 10), "honest"))
        out = after(ledger, Disbelieve("liar"), Recalled(0))
        assert out == [Recall(0), Send(3, "honest", (Span(0, 2, 6),), 2)]
        assert after(ledger, answer("honest", 3))[-1] == Deliver(0)

    def test_it_may_be_lost_already(self, ledger: Ledger) -> None:
        assert after(ledger, TeacherLost("liar"), Disbelieve("liar")) == [Recall(0)]
        assert ledger.queued == 2

    def test_a_hedge_of_an_honest_one_goes_on(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("liar", 1), *queued(0), TeacherJoined("honest", 1), Hedge(1))
        assert after(ledger, Disbelieve("liar"), answer("liar", 1)) == [Discard(1, "liar")]
        assert after(ledger, answer("honest", 1)) == [Accept(1, whole(0)), Deliver(0)]

    def test_two_liars_are_one_recall(self) -> None:
        ledger = Ledger()
        after(ledger, *queued(0), TeacherJoined("x", 1, 5), TeacherJoined("y", 1, 5))
        after(ledger, answer("x", 1), answer("y", 2))
        assert after(ledger, Disbelieve("x"), Disbelieve("y")) == [Recall(0)]
        assert rows_sent(after(ledger, Recalled(0), TeacherJoined("z", 1))) == [[(0, 0, 10)]]

    def test_what_was_refused_before_is_known_still(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("a", 1), *queued(0), TeacherJoined("b", 1))
        after(ledger, Refused("a", 1, "bad"), answer("b", 2))
        out = after(ledger, Disbelieve("b"), Recalled(0))
        assert out == [Recall(0), Void(0), Poison(0, ("a: bad",))]

    def test_without_order_it_is_delivered_when_it_has_labels_again(self) -> None:
        ledger = Ledger(ordered=False)
        after(ledger, TeacherJoined("liar", 1), *queued(0), answer("liar", 1))
        out = after(ledger, Disbelieve("liar"), Recalled(0), TeacherJoined("b", 1), answer("b", 2))
        assert out[-1] == Deliver(0)

    def test_one_without_labels_is_not_recalled(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("liar", 1, 5), *queued(0), answer("liar", 1), Forgo(0))
        assert after(ledger, Disbelieve("liar")) == []

    def test_nobody_hands_back_what_was_not_recalled(self, ledger: Ledger) -> None:
        with pytest.raises(ValueError, match="batch 0 was handed back, but nobody has recalled"):
            ledger.handle(Recalled(0))

    def test_an_epoch_that_was_left_is_forgotten(self, ledger: Ledger) -> None:
        assert after(ledger, Disbelieve("liar"), Reset(), Recalled(0)) == [Recall(0)]

    def test_after_an_exchange_of_the_model_all_of_it_is_labelled_anew(self) -> None:
        """Else one batch had labels of two models."""
        ledger = Ledger()
        after(ledger, *queued(0), TeacherJoined("liar", 1, 5), TeacherJoined("honest", 1, 5))
        after(ledger, answer("liar", 1), answer("honest", 2), Disbelieve("liar"), Relabel())
        assert rows_sent(after(ledger, Recalled(0), TeacherJoined("new", 1))) == [
            [(0, 0, 5)],
            [(0, 5, 10)],
        ]


class TestHeld:
    """Batches whose labels an engine before this one was given, and who made them."""

    def test_they_are_recalled_whole_when_one_of_their_makers_is_not_believed(self) -> None:
        ledger = Ledger()
        after(ledger, Held(0, 110, 10, makers=("honest", "liar")), Held(1, 110, 10, 0, ("honest",)))
        assert ledger.makers(0) == ("honest", "liar")
        assert after(ledger, Disbelieve("liar"), Disbelieve("liar")) == [Recall(0)]
        assert after(ledger, Recalled(0), TeacherJoined("b", 1)) == [
            Void(0),
            Send(1, "b", whole(0), 2),
        ]
        assert after(ledger, answer("b", 1)) == [Accept(1, whole(0)), Deliver(0)]
        assert ledger.makers(0) == ("b",)
        assert (ledger.deliverable, ledger.volume_bytes) == (2, 230)

    def test_two_makers_that_lie_are_one_recall(self) -> None:
        ledger = Ledger()
        after(ledger, Held(0, 110, 10, makers=("x", "y")))
        assert after(ledger, Disbelieve("x"), Disbelieve("y")) == [Recall(0)]
        assert after(ledger, Recalled(0), TeacherJoined("b", 1))[0] == Void(0)

    def test_one_of_which_nobody_knows_who_made_it_stays(self) -> None:
        assert after(Ledger(), Held(0, 110), Disbelieve("liar")) == []


class TestDoubt:
    def test_a_batch_is_recalled_whole_whoever_labelled_it(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("a", 1), *queued(0, 1), answer("a", 1))
        assert after(ledger, Doubt(0), Doubt(0), Doubt(1), Doubt(7)) == [Recall(0)]
        assert after(ledger, Recalled(0), answer("a", 2)) == [
            Void(0),
            Accept(2, whole(1)),
            Send(3, "a", whole(0), 2),
        ]

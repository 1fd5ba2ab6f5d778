"""A stream of whole batches: order, losses, failures, refusals, epochs; one example for each rule.

All of them together, at random: tests/properties.
"""

from __future__ import annotations

import pytest

from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger.events import (
    Accept,
    Cancelled,
    Deliver,
    Discard,
    Failed,
    Forgo,
    Held,
    Queued,
    Reset,
    Resumed,
    Send,
    Taken,
    TeacherJoined,
    TeacherLost,
    TeacherRevoked,
    WindowChanged,
)

from .telling import after, answer, queued, whole


@pytest.fixture
def ledger() -> Ledger:
    """Teachers a and b with one window each, batches 0 and 1 in flight there, 2 and 3 queued."""
    ledger = Ledger()
    out = after(ledger, TeacherJoined("a", 1), TeacherJoined("b", 1), *queued(0, 1, 2, 3))
    assert out == [Send(1, "a", whole(0), 1), Send(2, "b", whole(1), 1)]
    return ledger


class TestOrder:
    def test_a_batch_waits_for_the_earlier_ones(self, ledger: Ledger) -> None:
        out = after(ledger, answer("b", 2))
        assert out == [Accept(2, whole(1)), Send(3, "b", whole(2), 1)]
        assert ledger.volume_bytes == 110
        assert (ledger.deliverable, ledger.head) == (0, 0)
        assert after(ledger, answer("a", 1)) == [
            Accept(1, whole(0)),
            Deliver(0),
            Deliver(1),
            Send(4, "a", whole(3), 1),
        ]
        assert (ledger.deliverable, ledger.volume_bytes, ledger.head) == (2, 220, 2)

    def test_without_order_each_is_delivered_as_soon_as_it_is_labelled(self) -> None:
        ledger = Ledger(ordered=False)
        after(ledger, TeacherJoined("a", 2), *queued(0, 1))
        assert after(ledger, answer("a", 2), Taken(1)) == [Accept(2, whole(1)), Deliver(1)]
        assert after(ledger, answer("a", 1)) == [Accept(1, whole(0)), Deliver(0)]

    def test_what_is_taken_is_no_volume_any_more(self, ledger: Ledger) -> None:
        after(ledger, answer("a", 1), Taken(0))
        assert (ledger.deliverable, ledger.volume_bytes) == (0, 0)

    def test_a_batch_cannot_be_taken_before_it_is_delivered(self, ledger: Ledger) -> None:
        with pytest.raises(ValueError, match="batch 1 was taken, but it is unlabelled"):
            ledger.handle(Taken(1))

    def test_ids_grow(self, ledger: Ledger) -> None:
        with pytest.raises(ValueError, match="batch 3 comes after batch 3"):
            ledger.handle(Queued(3, 100, 10))


class TestLoss:
    def test_lost_rows_go_to_the_front(self, ledger: Ledger) -> None:
        assert after(ledger, TeacherLost("a")) == []
        assert after(ledger, answer("b", 2))[-1] == Send(3, "b", whole(0), 2)
        assert (ledger.resends, ledger.sent) == (1, 3)

    def test_several_lost_batches_keep_their_order(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("a", 3), *queued(0, 1, 2, 3, 4))
        assert ledger.in_flight_at("a") == (1, 2, 3)
        out = after(ledger, TeacherLost("a"), TeacherJoined("b", 4))
        attempts = {0: 2, 1: 2, 2: 2, 3: 1}
        assert out == [Send(4 + b, "b", whole(b), attempts[b]) for b in range(4)]

    def test_a_teacher_that_is_free_gets_them_at_once(self, ledger: Ledger) -> None:
        after(ledger, WindowChanged("b", 4))
        assert ledger.in_flight_at("b") == (2, 3, 4)
        assert after(ledger, TeacherLost("a")) == [Send(5, "b", whole(0), 2)]

    def test_a_late_answer_of_a_lost_teacher_is_discarded(self, ledger: Ledger) -> None:
        after(ledger, TeacherLost("a"))
        assert after(ledger, answer("a", 1)) == [Discard(1, "a")]
        assert ledger.volume_bytes == 0

    def test_so_it_is_when_the_teacher_has_come_back(self, ledger: Ledger) -> None:
        assert after(ledger, TeacherLost("a"), TeacherJoined("a", 1)) == [Send(3, "a", whole(0), 2)]
        assert after(ledger, answer("a", 1)) == [Discard(1, "a")]
        assert after(ledger, answer("a", 3))[:2] == [Accept(3, whole(0)), Deliver(0)]

    def test_nobody_minds_the_loss_of_a_stranger(self, ledger: Ledger) -> None:
        assert after(ledger, TeacherLost("x"), TeacherRevoked("x"), Resumed("x")) == []


class TestFailure:
    def test_it_goes_elsewhere_and_the_teacher_rests(self, ledger: Ledger) -> None:
        assert after(ledger, Failed("a", 1)) == []
        assert (ledger.usable, ledger.windows, ledger.free_windows) == (1, 1, 0)
        assert ledger.teachers == ("a", "b")
        assert after(ledger, answer("b", 2))[-1] == Send(3, "b", whole(0), 2)

    def test_a_rested_teacher_may_have_the_same_rows_again(self, ledger: Ledger) -> None:
        assert after(ledger, Failed("a", 1), Resumed("a")) == [Send(3, "a", whole(0), 2)]

    def test_its_other_requests_go_on(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("a", 2), *queued(0, 1), Failed("a", 1))
        assert ledger.in_flight_at("a") == (2,)
        assert after(ledger, answer("a", 2), Resumed("a"), answer("a", 3)) == [
            Accept(2, whole(1)),
            Send(3, "a", whole(0), 2),
            Accept(3, whole(0)),
            Deliver(0),
            Deliver(1),
        ]

    def test_a_cancelled_request_is_nobodys_fault(self, ledger: Ledger) -> None:
        assert after(ledger, Cancelled("a", 1)) == [Send(3, "a", whole(0), 2)]
        assert ledger.usable == 2
        assert after(ledger, Cancelled("a", 1), Cancelled("x", 3)) == []


class TestRevocation:
    def test_it_finishes_what_it_has_and_gets_nothing_new(self, ledger: Ledger) -> None:
        assert after(ledger, TeacherRevoked("a")) == []
        assert ledger.teachers == ("b",)
        assert after(ledger, answer("a", 1)) == [Accept(1, whole(0)), Deliver(0)]
        assert ledger.in_flight == 1
        assert after(ledger, answer("a", 1)) == [Discard(1, "a")]  # it is a stranger now

    def test_it_may_come_back_before_it_is_done(self, ledger: Ledger) -> None:
        out = after(ledger, TeacherRevoked("a"), TeacherJoined("a", 2), answer("a", 1))
        assert out == [
            Send(3, "a", whole(2), 1),
            Accept(1, whole(0)),
            Deliver(0),
            Send(4, "a", whole(3), 1),
        ]


class TestGoingWithout:
    def test_the_batch_is_delivered_in_its_turn_with_no_labels(self, ledger: Ledger) -> None:
        assert after(ledger, Forgo(2)) == []
        assert (ledger.queued, ledger.unlabelled, ledger.volume_bytes) == (1, 3, 100)
        assert after(ledger, Forgo(0)) == [Deliver(0)]
        assert after(ledger, answer("b", 2))[:3] == [Accept(2, whole(1)), Deliver(1), Deliver(2)]

    def test_what_is_still_answered_is_discarded(self, ledger: Ledger) -> None:
        after(ledger, Forgo(0), Taken(0))
        assert after(ledger, answer("a", 1)) == [Discard(1, "a"), Send(3, "a", whole(2), 1)]

    def test_what_was_in_flight_of_it_is_not_sent_again(self, ledger: Ledger) -> None:
        after(ledger, Forgo(0))
        assert after(ledger, TeacherLost("a"), WindowChanged("b", 9)) == [
            Send(3, "b", whole(2), 1),
            Send(4, "b", whole(3), 1),
        ]

    def test_one_that_has_its_labels_keeps_them(self, ledger: Ledger) -> None:
        after(ledger, answer("b", 2))
        assert after(ledger, Forgo(1), Forgo(77)) == []
        assert ledger.volume_bytes == 110


class TestEpochsAndRestarts:
    def test_a_reset_forgets_batches_and_keeps_windows_filled(self, ledger: Ledger) -> None:
        after(ledger, answer("a", 1))
        assert after(ledger, Reset()) == []
        assert (ledger.volume_bytes, ledger.deliverable, ledger.unlabelled) == (0, 0, 0)
        assert ledger.in_flight == 2
        assert after(ledger, *queued(9)) == []
        assert after(ledger, answer("b", 2)) == [Discard(2, "b"), Send(4, "b", whole(9), 1)]
        assert after(ledger, Taken(0)) == []  # posted before the reset was known

    def test_ids_grow_over_epochs(self, ledger: Ledger) -> None:
        after(ledger, Reset())
        with pytest.raises(ValueError, match="batch 3 comes after batch 3"):
            ledger.handle(Queued(3, 100, 10))

    def test_held_batches_are_volume_and_never_delivered(self) -> None:
        ledger = Ledger()
        out = after(ledger, Held(4, 110), Held(5, 110), *queued(6), TeacherJoined("a", 1))
        assert out == [Send(1, "a", whole(6), 1)]
        assert (ledger.volume_bytes, ledger.deliverable) == (220, 2)
        out = after(ledger, answer("a", 1), Taken(4), Taken(5), Taken(6))
        assert out == [Accept(1, whole(6)), Deliver(6)]
        assert ledger.volume_bytes == 0

    @pytest.mark.parametrize("ordered", [True, False])
    def test_what_is_held_may_lie_behind_what_is_not(self, ordered: bool) -> None:
        ledger = Ledger(ordered=ordered)
        out = after(ledger, Held(5, 110), *queued(3), Held(7, 110), *queued(4, 8))
        assert out == []
        assert after(ledger, Taken(5), TeacherJoined("a", 1)) == [Send(1, "a", whole(3), 1)]
        assert after(ledger, answer("a", 1))[1] == Deliver(3)
        assert (ledger.volume_bytes, ledger.deliverable) == (220, 2)

    def test_nothing_is_held_twice(self) -> None:
        ledger = Ledger()
        after(ledger, Held(5, 110))
        with pytest.raises(ValueError, match="batch 5 comes a second time"):
            ledger.handle(Held(5, 110))

"""The order of a stream through losses, failures and restarts, and the statistics of the ledger."""

from __future__ import annotations

import pytest

from edl.scheduler.ledger import InFlight, Ledger
from edl.scheduler.ledger import events as ev

from .driver import after, answer, queued, whole


@pytest.fixture
def ledger() -> Ledger:
    """Batches 0 and 1 are in flight at a and b, with a window of 1 each; 2 and 3 are queued."""
    ledger = Ledger()
    out = after(ledger, ev.TeacherJoined("a", 1), ev.TeacherJoined("b", 1), *queued(0, 1, 2, 3))
    assert out == [ev.Send(1, "a", whole(0), 1), ev.Send(2, "b", whole(1), 1)]
    return ledger


class TestOrder:
    def test_batches_are_delivered_in_order_unless_told_otherwise(self, ledger: Ledger) -> None:
        out = after(ledger, answer("b", 2))
        assert out == [ev.Accept(2, whole(1)), ev.Send(3, "b", whole(2), 1)]
        assert ledger.volume_bytes == 110
        assert (ledger.deliverable, ledger.head) == (0, 0)
        assert after(ledger, answer("a", 1)) == [
            ev.Accept(1, whole(0)),
            ev.Deliver(0),
            ev.Deliver(1),
            ev.Send(4, "a", whole(3), 1),
        ]
        assert (ledger.deliverable, ledger.volume_bytes, ledger.head) == (2, 220, 2)
        ledger = Ledger(ordered=False)
        after(ledger, ev.TeacherJoined("a", 2), *queued(0, 1))
        assert after(ledger, answer("a", 2), ev.Taken(1)) == [ev.Accept(2, whole(1)), ev.Deliver(1)]
        assert after(ledger, answer("a", 1)) == [ev.Accept(1, whole(0)), ev.Deliver(0)]

    def test_taken_batches(self, ledger: Ledger) -> None:
        with pytest.raises(ValueError, match="batch 1 was taken, but it is unlabelled"):
            ledger.handle(ev.Taken(1))
        after(ledger, answer("a", 1), ev.Taken(0))
        assert (ledger.deliverable, ledger.volume_bytes) == (0, 0)

    def test_ids_must_grow(self, ledger: Ledger) -> None:
        with pytest.raises(ValueError, match="batch 3 comes after batch 3"):
            ledger.handle(ev.Queued(3, 100, 10))
        after(ledger, ev.Reset())
        with pytest.raises(ValueError, match="batch 3 comes after batch 3"):
            ledger.handle(ev.Queued(3, 100, 10))
        ledger = Ledger()
        after(ledger, ev.Held(5, 110))
        with pytest.raises(ValueError, match="batch 5 comes a second time"):
            ledger.handle(ev.Held(5, 110))


class TestLoss:
    def test_lost_rows_go_to_the_front_in_order(self, ledger: Ledger) -> None:
        assert after(ledger, ev.TeacherLost("a")) == []
        assert after(ledger, answer("b", 2))[-1] == ev.Send(3, "b", whole(0), 2)
        assert (ledger.resends, ledger.sent) == (1, 3)
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 3), *queued(0, 1, 2, 3, 4))
        assert ledger.in_flight_at("a") == (1, 2, 3)
        out = after(ledger, ev.TeacherLost("a"), ev.TeacherJoined("b", 4))
        attempts = {0: 2, 1: 2, 2: 2, 3: 1}
        assert out == [ev.Send(4 + b, "b", whole(b), attempts[b]) for b in range(4)]

    def test_free_teacher_gets_lost_rows_at_once(self, ledger: Ledger) -> None:
        after(ledger, ev.WindowChanged("b", 4))
        assert ledger.in_flight_at("b") == (2, 3, 4)
        assert after(ledger, ev.TeacherLost("a")) == [ev.Send(5, "b", whole(0), 2)]

    def test_late_answers_after_a_new_join_are_discarded(self, ledger: Ledger) -> None:
        assert after(ledger, ev.TeacherLost("a"), ev.TeacherJoined("a", 1)) == [
            ev.Send(3, "a", whole(0), 2)
        ]
        assert after(ledger, answer("a", 1)) == [ev.Discard(1, "a")]
        assert after(ledger, answer("a", 3))[:2] == [ev.Accept(3, whole(0)), ev.Deliver(0)]

    def test_late_answers_of_lost_teachers_are_discarded(self, ledger: Ledger) -> None:
        assert after(ledger, ev.TeacherLost("x"), ev.TeacherRevoked("x"), ev.Resumed("x")) == []
        after(ledger, ev.TeacherLost("a"))
        assert after(ledger, answer("a", 1)) == [ev.Discard(1, "a")]
        assert ledger.volume_bytes == 0


class TestFailure:
    def test_failed_request_goes_elsewhere_and_the_teacher_rests(self, ledger: Ledger) -> None:
        assert after(ledger, ev.Failed("a", 1)) == []
        assert (ledger.usable, ledger.windows, ledger.free_windows) == (1, 1, 0)
        assert ledger.teachers == ("a", "b")
        assert after(ledger, answer("b", 2))[-1] == ev.Send(3, "b", whole(0), 2)

    def test_teacher_resumes_and_keeps_its_other_requests(self, ledger: Ledger) -> None:
        assert after(ledger, ev.Failed("a", 1), ev.Resumed("a")) == [ev.Send(3, "a", whole(0), 2)]
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 2), *queued(0, 1), ev.Failed("a", 1))
        assert ledger.in_flight_at("a") == (2,)
        assert after(ledger, answer("a", 2), ev.Resumed("a"), answer("a", 3)) == [
            ev.Accept(2, whole(1)),
            ev.Send(3, "a", whole(0), 2),
            ev.Accept(3, whole(0)),
            ev.Deliver(0),
            ev.Deliver(1),
        ]

    def test_cancelled_request_is_no_failure(self, ledger: Ledger) -> None:
        assert after(ledger, ev.Cancelled("a", 1)) == [ev.Send(3, "a", whole(0), 2)]
        assert ledger.usable == 2
        assert after(ledger, ev.Cancelled("a", 1), ev.Cancelled("x", 3)) == []


class TestRevocation:
    def test_revoked_teacher_finishes_its_requests(self, ledger: Ledger) -> None:
        assert after(ledger, ev.TeacherRevoked("a")) == []
        assert ledger.teachers == ("b",)
        assert after(ledger, answer("a", 1)) == [ev.Accept(1, whole(0)), ev.Deliver(0)]
        assert ledger.in_flight == 1
        assert after(ledger, answer("a", 1)) == [ev.Discard(1, "a")]  # it is a stranger now

    def test_revoked_teacher_may_join_again_meanwhile(self, ledger: Ledger) -> None:
        out = after(ledger, ev.TeacherRevoked("a"), ev.TeacherJoined("a", 2), answer("a", 1))
        assert out == [
            ev.Send(3, "a", whole(2), 1),
            ev.Accept(1, whole(0)),
            ev.Deliver(0),
            ev.Send(4, "a", whole(3), 1),
        ]


class TestDeliverUnlabelled:
    def test_unlabelled_batch_is_delivered_in_its_turn(self, ledger: Ledger) -> None:
        assert after(ledger, ev.Forgo(2)) == []
        assert (ledger.queued, ledger.unlabelled, ledger.volume_bytes) == (1, 3, 100)
        assert after(ledger, ev.Forgo(0)) == [ev.Deliver(0)]
        assert after(ledger, answer("b", 2))[:3] == [
            ev.Accept(2, whole(1)),
            ev.Deliver(1),
            ev.Deliver(2),
        ]

    def test_late_answers_are_discarded(self, ledger: Ledger) -> None:
        after(ledger, ev.Forgo(0), ev.Taken(0))
        assert after(ledger, answer("a", 1)) == [ev.Discard(1, "a"), ev.Send(3, "a", whole(2), 1)]

    def test_its_requests_are_not_sent_again(self, ledger: Ledger) -> None:
        after(ledger, ev.Forgo(0))
        assert after(ledger, ev.TeacherLost("a"), ev.WindowChanged("b", 9)) == [
            ev.Send(3, "b", whole(2), 1),
            ev.Send(4, "b", whole(3), 1),
        ]

    def test_labelled_batch_keeps_its_labels(self, ledger: Ledger) -> None:
        after(ledger, answer("b", 2))
        assert after(ledger, ev.Forgo(1), ev.Forgo(77)) == []
        assert ledger.volume_bytes == 110


class TestEpochsAndRestarts:
    def test_reset_forgets_batches_and_keeps_windows_filled(self, ledger: Ledger) -> None:
        after(ledger, answer("a", 1))
        assert after(ledger, ev.Reset()) == []
        assert (ledger.volume_bytes, ledger.deliverable, ledger.unlabelled) == (0, 0, 0)
        assert ledger.in_flight == 2
        assert after(ledger, *queued(9)) == []
        assert after(ledger, answer("b", 2)) == [ev.Discard(2, "b"), ev.Send(4, "b", whole(9), 1)]
        assert after(ledger, ev.Taken(0)) == []  # posted before the reset was known

    def test_held_batches_count_and_are_not_delivered_again(self) -> None:
        ledger = Ledger()
        out = after(ledger, ev.Held(4, 110), ev.Held(5, 110), *queued(6), ev.TeacherJoined("a", 1))
        assert out == [ev.Send(1, "a", whole(6), 1)]
        assert (ledger.volume_bytes, ledger.deliverable) == (220, 2)
        out = after(ledger, answer("a", 1), ev.Taken(4), ev.Taken(5), ev.Taken(6))
        assert out == [ev.Accept(1, whole(6)), ev.Deliver(6)]
        assert ledger.volume_bytes == 0

    @pytest.mark.parametrize("ordered", [True, False])
    def test_held_batches_may_be_behind_others(self, ordered: bool) -> None:
        ledger = Ledger(ordered=ordered)
        out = after(ledger, ev.Held(5, 110), *queued(3), ev.Held(7, 110), *queued(4, 8))
        assert out == []
        assert after(ledger, ev.Taken(5), ev.TeacherJoined("a", 1)) == [
            ev.Send(1, "a", whole(3), 1)
        ]
        assert after(ledger, answer("a", 1))[1] == ev.Deliver(3)
        assert (ledger.volume_bytes, ledger.deliverable) == (220, 2)


class TestStatistics:
    @pytest.fixture
    def ledger(self) -> Ledger:
        """a: two requests of batch 0, the first of them hedged to b, which has batch 1 besides."""
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 2, most_rows=5), *queued(0))
        after(ledger, ev.TeacherJoined("b", 3), ev.Hedge(1), *queued(1))
        return ledger

    def test_requests_in_flight(self, ledger: Ledger) -> None:
        first, second = InFlight(1, (ev.Span(0, 0, 5),), 2, ("a", "b")), (ev.Span(0, 5, 10),)
        assert list(ledger.requests_at("a")) == [first, InFlight(2, second, 1, ("a",))]
        assert list(ledger.requests_at("b")) == [first, InFlight(3, whole(1), 1, ("b",))]
        assert list(ledger.requests_at("x")) == []
        assert ledger.in_flight_at("x") == ()
        assert ledger.in_flight == 4
        assert first.rows == 5

    def test_revoked_teacher_works_until_it_is_done(self, ledger: Ledger) -> None:
        after(ledger, ev.TeacherRevoked("a"), ev.TeacherJoined("idle", 1))
        assert (ledger.teachers, ledger.at_work) == (("b", "idle"), ("a", "b"))
        after(ledger, answer("a", 1), answer("a", 2))
        assert ledger.at_work == ("b",)

    def test_request_is_known_until_its_last_copy_ends(self, ledger: Ledger) -> None:
        after(ledger, answer("b", 1))
        assert ledger.request(1) == InFlight(1, (ev.Span(0, 0, 5),), 2, ())
        after(ledger, answer("a", 1))
        assert ledger.request(1) is None

    def test_labelled_by(self, ledger: Ledger) -> None:
        after(ledger, answer("a", 2), answer("b", 1))
        assert ledger.labelled_by(0) == ((ev.Span(0, 0, 5), "b"), (ev.Span(0, 5, 10), "a"))
        assert ledger.labelled_by(1) == ledger.labelled_by(77) == ()

    def test_head(self, ledger: Ledger) -> None:
        assert ledger.head == 0
        after(ledger, answer("a", 1), answer("a", 2))
        assert ledger.head == 1
        after(ledger, answer("b", 3))
        assert ledger.head is None

    def test_batch_bytes_is_the_heaviest(self, ledger: Ledger) -> None:
        assert ledger.batch_bytes == 100
        after(ledger, answer("a", 1), answer("a", 2), ev.Taken(0))
        assert ledger.batch_bytes == 110, "with its labels"
        after(ledger, ev.Queued(2, 500, 1), ev.Reset())
        assert ledger.batch_bytes == 500

    def test_windows_in_requests_and_in_batches(self) -> None:
        ledger = Ledger()
        assert ledger.window_batches == ledger.windows == 0
        after(ledger, ev.TeacherJoined("a", 2), ev.TeacherJoined("b", 3, most_rows=5))
        after(ledger, ev.TeacherJoined("c", 2, most_rows=25), *queued(0))
        assert (ledger.windows, ledger.free_windows) == (7, 5)
        assert ledger.window_batches == 9  # 2 x 10, 3 x 5 and 2 x 25 rows, at 10 a batch
        after(ledger, ev.TeacherRevoked("a"), ev.Ejected("c"))
        assert (ledger.windows, ledger.window_batches) == (3, 2)

    def test_teacher_counts(self, ledger: Ledger) -> None:
        after(ledger, ev.TeacherJoined("c", 1), ev.TeacherJoined("d", 1), ev.Ejected("d"))
        assert (ledger.teachers, ledger.on_trial) == (("a", "b", "c", "d"), ("d",))
        assert (ledger.usable, ledger.idle) == (3, 1)
        after(ledger, ev.Failed("b", 3))
        assert ledger.usable == 2
        after(ledger, ev.TeacherRevoked("d"), ev.TeacherLost("c"))
        assert (ledger.teachers, ledger.on_trial, ledger.idle) == (("a", "b"), (), 0)

    def test_resends_count_as_requests_and_hedges_do_not(self, ledger: Ledger) -> None:
        assert (ledger.sent, ledger.resends, ledger.hedges) == (3, 0, 1)
        after(ledger, ev.Failed("a", 2))
        assert (ledger.sent, ledger.resends, ledger.hedges) == (4, 1, 1)

"""A stream through losses, failures and restarts, and the statistics of the ledger."""

from __future__ import annotations

import pytest

from edl.scheduler.ledger import InFlight, Ledger
from edl.scheduler.ledger import events as ev

from .driver import after, answer, queued, take, whole


@pytest.fixture
def ledger() -> Ledger:
    """Batches 0 and 1 are in flight at a and b, with a window of 1 each; 2 and 3 are queued."""
    ledger = Ledger()
    out = after(ledger, ev.TeacherJoined("a", 1), ev.TeacherJoined("b", 1), *queued(0, 1, 2, 3))
    assert out == [ev.Send(1, "a", whole(0), 1), ev.Send(2, "b", whole(1), 1)]
    return ledger


class TestStages:
    def test_each_batch_is_told_as_soon_as_it_is_labelled(self, ledger: Ledger) -> None:
        assert after(ledger, answer("b", 2)) == [
            ev.Accept(2, whole(1)),
            ev.Labelled(1),
            ev.Send(3, "b", whole(2), 1),
        ]
        assert (ledger.labelled, ledger.volume_bytes, ledger.head) == (1, 110, 0)
        assert [ledger.has_next(ordered=ordered) for ordered in (True, False)] == [False, True]
        assert after(ledger, answer("a", 1))[:2] == [ev.Accept(1, whole(0)), ev.Labelled(0)]
        assert (ledger.labelled, ledger.volume_bytes, ledger.head) == (2, 220, 2)
        assert ledger.has_next(ordered=True)

    def test_released_and_taken_batches(self, ledger: Ledger) -> None:
        with pytest.raises(ValueError, match="batch 1 was released, but it is unlabelled"):
            ledger.handle(ev.Released(1))
        after(ledger, answer("a", 1))
        with pytest.raises(ValueError, match="batch 0 was taken, but it is labelled"):
            ledger.handle(ev.Taken(0))
        assert after(ledger, ev.Released(0)) == []
        assert ledger.volume_bytes == 110
        after(ledger, ev.Taken(0))
        assert (ledger.labelled, ledger.volume_bytes) == (0, 0)

    def test_ids_must_grow(self, ledger: Ledger) -> None:
        with pytest.raises(ValueError, match="batch 3 comes after batch 3"):
            ledger.handle(ev.Queued(3, 100, 10))
        after(ledger, ev.Reset())
        with pytest.raises(ValueError, match="batch 3 comes after batch 3"):
            ledger.handle(ev.Queued(3, 100, 10))
        ledger = Ledger()
        after(ledger, ev.Held(5, 110))
        with pytest.raises(ValueError, match="batch 5 comes after batch 5"):
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

    def test_late_answers_of_lost_teachers_are_discarded(self, ledger: Ledger) -> None:
        assert after(ledger, ev.TeacherLost("x"), ev.TeacherRevoked("x"), ev.Resumed("x")) == []
        after(ledger, ev.TeacherLost("a"))
        assert after(ledger, answer("a", 1)) == [ev.Discard(1, "a")]
        assert ledger.volume_bytes == 0


class TestFailure:
    def test_cancelled_request_is_no_failure(self, ledger: Ledger) -> None:
        assert after(ledger, ev.Cancelled("a", 1)) == [ev.Send(3, "a", whole(0), 2)]
        assert ledger.usable == 2
        assert after(ledger, ev.Cancelled("a", 1), ev.Cancelled("x", 3)) == []


class TestDeliverUnlabelled:
    def test_labelled_batch_keeps_its_labels(self, ledger: Ledger) -> None:
        after(ledger, answer("b", 2))
        assert after(ledger, ev.Forgo(1), ev.Forgo(77)) == []
        assert ledger.volume_bytes == 110


class TestEpochsAndRestarts:
    def test_reset_forgets_batches_and_keeps_windows_filled(self, ledger: Ledger) -> None:
        after(ledger, answer("a", 1))
        assert after(ledger, ev.Reset()) == []
        assert (ledger.volume_bytes, ledger.labelled, ledger.unlabelled) == (0, 0, 0)
        assert ledger.in_flight == 2
        assert after(ledger, *queued(9)) == []
        assert after(ledger, answer("b", 2)) == [ev.Discard(2, "b"), ev.Send(4, "b", whole(9), 1)]
        assert after(ledger, *take(0)) == []  # posted before the reset was known


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

    def test_batch_bytes_is_the_heaviest(self, ledger: Ledger) -> None:
        assert ledger.load.batch_bytes == 100
        after(ledger, answer("a", 1), answer("a", 2), *take(0))
        assert ledger.load.batch_bytes == 110, "with its labels"
        after(ledger, ev.Queued(2, 500, 1), ev.Reset())
        assert ledger.load.batch_bytes == 500

    def test_windows_in_requests_and_in_batches(self) -> None:
        ledger = Ledger()
        assert ledger.load.window_batches == ledger.load.free_windows == 0
        after(ledger, ev.TeacherJoined("a", 2), ev.TeacherJoined("b", 3, most_rows=5))
        after(ledger, ev.TeacherJoined("c", 2, most_rows=25), *queued(0))
        assert (ledger.in_flight, ledger.load.free_windows) == (2, 5)
        assert ledger.load.window_batches == 9  # 2 x 10, 3 x 5 and 2 x 25 rows, at 10 a batch
        after(ledger, ev.TeacherRevoked("a"), ev.Ejected("c"))
        assert ledger.load.window_batches == 2

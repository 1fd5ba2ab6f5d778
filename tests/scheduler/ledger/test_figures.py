"""What the ledger tells those who decide about flow, windows, hedges and outliers."""

from __future__ import annotations

import pytest

from edl.scheduler.ledger import InFlight, Ledger
from edl.scheduler.ledger.events import (
    Ejected,
    Failed,
    Hedge,
    Queued,
    Reset,
    Span,
    Taken,
    TeacherJoined,
    TeacherLost,
    TeacherRevoked,
)

from .telling import after, answer, queued, whole


@pytest.fixture
def ledger() -> Ledger:
    """a: two requests of batch 0, the first of them hedged to b, which has batch 1 besides."""
    ledger = Ledger()
    after(ledger, TeacherJoined("a", 2, most_rows=5), *queued(0))
    after(ledger, TeacherJoined("b", 3), Hedge(1), *queued(1))
    return ledger


def test_who_is_at_work_on_what(ledger: Ledger) -> None:
    first, second = InFlight(1, (Span(0, 0, 5),), 2, ("a", "b")), (Span(0, 5, 10),)
    assert list(ledger.requests_at("a")) == [first, InFlight(2, second, 1, ("a",))]
    assert list(ledger.requests_at("b")) == [first, InFlight(3, whole(1), 1, ("b",))]
    assert list(ledger.requests_at("x")) == []
    assert ledger.in_flight_at("x") == ()
    assert ledger.in_flight == 4
    assert first.rows == 5


def test_a_revoked_teacher_is_at_work_until_it_is_done(ledger: Ledger) -> None:
    after(ledger, TeacherRevoked("a"), TeacherJoined("idle", 1))
    assert (ledger.teachers, ledger.at_work) == (("b", "idle"), ("a", "b"))
    after(ledger, answer("a", 1), answer("a", 2))
    assert ledger.at_work == ("b",)


def test_a_request_is_told_of_until_its_last_copy_is_over(ledger: Ledger) -> None:
    after(ledger, answer("b", 1))
    assert ledger.request(1) == InFlight(1, (Span(0, 0, 5),), 2, ())
    after(ledger, answer("a", 1))
    assert ledger.request(1) is None


def test_who_labelled_which_rows(ledger: Ledger) -> None:
    after(ledger, answer("a", 2), answer("b", 1))
    assert ledger.labelled_by(0) == ((Span(0, 0, 5), "b"), (Span(0, 5, 10), "a"))
    assert ledger.labelled_by(1) == ledger.labelled_by(77) == ()


def test_the_head_is_what_the_stream_waits_for(ledger: Ledger) -> None:
    assert ledger.head == 0
    after(ledger, answer("a", 1), answer("a", 2))
    assert ledger.head == 1
    after(ledger, answer("b", 3))
    assert ledger.head is None


def test_the_heaviest_batch_is_remembered(ledger: Ledger) -> None:
    assert ledger.batch_bytes == 100
    after(ledger, answer("a", 1), answer("a", 2), Taken(0))
    assert ledger.batch_bytes == 110, "with its labels"
    after(ledger, Queued(2, 500, 1), Reset())
    assert ledger.batch_bytes == 500


def test_windows_in_requests_and_in_batches() -> None:
    ledger = Ledger()
    assert ledger.window_batches == ledger.windows == 0
    after(ledger, TeacherJoined("a", 2), TeacherJoined("b", 3, most_rows=5))
    after(ledger, TeacherJoined("c", 2, most_rows=25), *queued(0))
    assert (ledger.windows, ledger.free_windows) == (7, 5)
    assert ledger.window_batches == 9  # 2 x 10, 3 x 5 and 2 x 25 rows, at 10 a batch
    after(ledger, TeacherRevoked("a"), Ejected("c"))
    assert (ledger.windows, ledger.window_batches) == (3, 2)


def test_teachers_and_what_they_are_good_for(ledger: Ledger) -> None:
    after(ledger, TeacherJoined("c", 1), TeacherJoined("d", 1), Ejected("d"))
    assert (ledger.teachers, ledger.on_trial) == (("a", "b", "c", "d"), ("d",))
    assert (ledger.usable, ledger.idle) == (3, 1)
    after(ledger, Failed("b", 3))
    assert ledger.usable == 2
    after(ledger, TeacherRevoked("d"), TeacherLost("c"))
    assert (ledger.teachers, ledger.on_trial, ledger.idle) == (("a", "b"), (), 0)


def test_a_resend_is_a_request_and_a_hedge_is_none(ledger: Ledger) -> None:
    assert (ledger.sent, ledger.resends, ledger.hedges) == (3, 0, 1)
    after(ledger, Failed("a", 2))
    assert (ledger.sent, ledger.resends, ledger.hedges) == (4, 1, 1)

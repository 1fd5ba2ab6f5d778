"""Who gets which rows: the teacher that would be through first, as far as its window goes."""

from __future__ import annotations

import pytest

from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger.events import (
    Accept,
    Deliver,
    Send,
    TeacherJoined,
    WindowChanged,
)

from .telling import after, answer, queued, sends, whole


def where(ledger: Ledger, *batches: int, rows: int = 10) -> list[str]:
    return [send.teacher for send in sends(after(ledger, *queued(*batches, rows=rows)))]


def test_the_first_to_be_through_wins() -> None:
    ledger = Ledger()
    after(ledger, TeacherJoined("slow", 4, None, 0.03), TeacherJoined("fast", 4, None, 0.01))
    assert where(ledger, 0, 1, 2, 3, 4) == ["fast", "fast", "slow", "fast", "fast"]


def test_rows_count_and_not_requests() -> None:
    ledger = Ledger()
    after(ledger, TeacherJoined("a", 4, None, 0.01), TeacherJoined("b", 4, None, 0.01))
    assert where(ledger, 0, rows=30) == ["a"]
    assert where(ledger, 1, 2, 3, 4) == ["b", "b", "b", "a"]


def test_a_teacher_is_through_sooner_with_a_part() -> None:
    ledger = Ledger()
    after(ledger, TeacherJoined("a", 1, None, 0.01), TeacherJoined("b", 1, 5, 0.015))
    assert where(ledger, 0) == ["b", "a"]


def test_speeds_are_learned_from_answers() -> None:
    ledger = Ledger()
    after(ledger, TeacherJoined("a", 1), TeacherJoined("b", 1), *queued(0, 1))
    after(ledger, answer("a", 1, device_s=0.5), answer("b", 2, device_s=0.1))
    assert where(ledger, 2) == ["b"]


def test_a_speed_follows_what_a_teacher_does_now() -> None:
    ledger = Ledger()
    after(ledger, TeacherJoined("a", 1, None, 0.01), TeacherJoined("b", 1, None, 0.02))
    for request in range(1, 9):
        after(ledger, *queued(request))
        teacher = "a" if ledger.in_flight_at("a") else "b"
        after(ledger, answer(teacher, request, device_s=0.5 if teacher == "a" else 0.2))
    assert where(ledger, 9) == ["b"]


@pytest.mark.parametrize("unknown", [0.0, -1.0])
def test_an_answer_without_a_time_teaches_nothing(unknown: float) -> None:
    ledger = Ledger()
    after(ledger, TeacherJoined("a", 1, None, 0.03), TeacherJoined("b", 1, None, 0.02))
    after(ledger, *queued(0, 1), answer("a", 2, unknown), answer("b", 1, 0.2))
    assert where(ledger, 2) == ["b"]


def test_unknown_speeds_spread_the_work() -> None:
    ledger = Ledger()
    after(ledger, TeacherJoined("a", 2), TeacherJoined("b", 2))
    assert where(ledger, 0, 1, 2, 3) == ["a", "b", "a", "b"]


def test_a_window_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="window of at least 1"):
        TeacherJoined("a", 0)
    with pytest.raises(ValueError, match="window of at least 1"):
        WindowChanged("a", 0)


def test_a_narrowed_window_runs_out() -> None:
    ledger = Ledger()
    after(ledger, TeacherJoined("a", 2), *queued(0, 1, 2, 3))
    out = after(ledger, WindowChanged("a", 1), answer("a", 1))
    assert out == [Accept(1, whole(0)), Deliver(0)]
    assert after(ledger, answer("a", 2))[-1] == Send(3, "a", whole(2), 1)

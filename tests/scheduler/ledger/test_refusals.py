"""Which refusals make a batch poison, and who is waited for."""

from __future__ import annotations

import pytest

from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger.events import (
    Accept,
    Awaited,
    Deliver,
    Ejected,
    Failed,
    Poison,
    Readmitted,
    Refused,
    Reset,
    Resumed,
    Send,
    TeacherJoined,
    TeacherLost,
    TeacherRevoked,
)

from .telling import after, answer, queued, whole


@pytest.fixture
def ledger() -> Ledger:
    """Teachers a and b with one window each, batches 0 and 1 in flight there, 2 and 3 queued."""
    ledger = Ledger()
    after(ledger, TeacherJoined("a", 1), TeacherJoined("b", 1), *queued(0, 1, 2, 3))
    return ledger


def test_a_refused_batch_goes_to_another_teacher_only(ledger: Ledger) -> None:
    assert after(ledger, Refused("a", 1, "shape")) == [Send(3, "a", whole(2), 1)]
    assert after(ledger, answer("a", 3))[-1] == Send(4, "a", whole(3), 1)  # not 0, which is ahead
    assert after(ledger, answer("b", 2))[-1] == Send(5, "b", whole(0), 2)
    out = after(ledger, answer("b", 5))
    assert out == [Accept(5, whole(0)), Deliver(0), Deliver(1), Deliver(2)]


def test_all_there_are_is_poison(ledger: Ledger) -> None:
    after(ledger, Refused("a", 1, "shape"), answer("b", 2))
    out = after(ledger, Refused("b", 4, "dtype"))
    assert out == [
        Poison(0, ("a: shape", "b: dtype")),
        Deliver(1),
        Send(5, "b", whole(3), 1),
    ]


def test_three_are_enough_however_many_there_are() -> None:
    ledger = Ledger()
    names = ("a", "b", "c", "d")
    after(ledger, *(TeacherJoined(name, 1) for name in names), *queued(0))
    out = after(ledger, *(Refused(name, i, "bad") for i, name in enumerate(names[:3], 1)))
    assert out == [
        Send(2, "b", whole(0), 2),
        Send(3, "c", whole(0), 3),
        Poison(0, ("a: bad", "b: bad", "c: bad")),
    ]
    assert ledger.queued == ledger.unlabelled == 0


def test_without_order_poison_is_out_at_once() -> None:
    ledger = Ledger(ordered=False)
    after(ledger, TeacherJoined("a", 2), *queued(0, 1))
    assert after(ledger, Refused("a", 2, "bad")) == [Poison(1, ("a: bad",))]
    assert after(ledger, answer("a", 1))[-1] == Deliver(0)


def test_one_that_rests_is_waited_for(ledger: Ledger) -> None:
    after(ledger, Failed("b", 2))
    assert after(ledger, Refused("a", 1, "bad"), answer("a", 3))[0] == Send(3, "a", whole(1), 2)
    assert after(ledger, Resumed("b")) == [Send(5, "b", whole(0), 2)]


def test_one_that_may_join_any_moment_is_waited_for() -> None:
    ledger = Ledger()
    after(ledger, Awaited(2), TeacherJoined("a", 1), Awaited(1), *queued(0, 1))
    assert after(ledger, Refused("a", 1, "bad")) == [Send(2, "a", whole(1), 1)]
    assert ledger.refusers == {"a"}
    assert after(ledger, TeacherJoined("b", 1), Awaited(0)) == [Send(3, "b", whole(0), 2)]
    assert after(ledger, Refused("b", 3, "bad")) == [Poison(0, ("a: bad", "b: bad"))]
    assert ledger.refusers == frozenset()


def test_when_the_awaited_do_not_come_all_there_are_is_poison() -> None:
    ledger = Ledger()
    after(ledger, Awaited(1), TeacherJoined("a", 1), *queued(0))
    assert after(ledger, Refused("a", 1, "bad")) == []
    after(ledger, Reset(), *queued(1))
    assert after(ledger, Refused("a", 2, "bad")) == []
    assert after(ledger, Awaited(0)) == [Poison(1, ("a: bad",))]


def test_one_that_is_busy_is_waited_for(ledger: Ledger) -> None:
    assert after(ledger, Refused("a", 1, "bad")) == [Send(3, "a", whole(2), 1)]
    assert Poison(0, ("a: bad",)) in after(ledger, TeacherLost("b"))


def test_one_on_trial_is_not_waited_for(ledger: Ledger) -> None:
    after(ledger, Refused("a", 1, "bad"))
    assert Poison(0, ("a: bad",)) in after(ledger, Ejected("b"))


def test_one_that_is_readmitted_may_be_the_last_to_have_refused() -> None:
    ledger = Ledger()
    after(ledger, TeacherJoined("a", 1), *queued(0), Ejected("a"), Refused("a", 1, "bad"))
    assert ledger.queued == 1, "nobody is there"
    assert after(ledger, Readmitted("a")) == [Poison(0, ("a: bad",))]


def test_with_nobody_there_the_next_teacher_decides() -> None:
    ledger = Ledger()
    after(ledger, TeacherJoined("a", 1), *queued(0), TeacherRevoked("a"))
    assert after(ledger, Refused("a", 1, "bad")) == []
    assert after(ledger, TeacherJoined("b", 1), answer("b", 2)) == [
        Send(2, "b", whole(0), 2),
        Accept(2, whole(0)),
        Deliver(0),
    ]


def test_with_nobody_there_who_comes_back_has_refused_already() -> None:
    ledger = Ledger()
    after(ledger, TeacherJoined("a", 1), *queued(0), TeacherRevoked("a"))
    assert after(ledger, Refused("a", 1, "bad")) == []
    assert after(ledger, TeacherJoined("a", 1)) == [Poison(0, ("a: bad",))]


def test_the_same_teacher_counts_once_in_all_its_lives() -> None:
    ledger = Ledger()
    after(ledger, TeacherJoined("a", 1), TeacherJoined("b", 1), *queued(0, 1))
    after(ledger, Refused("a", 1, "bad"), TeacherLost("a"), TeacherJoined("a", 1))
    assert ledger.in_flight_at("a") == ()
    assert ledger.queued == 1


def test_the_last_hope_may_fail_on_its_way_out(ledger: Ledger) -> None:
    after(ledger, Refused("a", 1, "bad"), answer("b", 2), TeacherRevoked("b"))
    assert ledger.in_flight_at("b") == (4,)
    assert Poison(0, ("a: bad",)) in after(ledger, Failed("b", 4))


def test_poison_keeps_its_place_in_the_line(ledger: Ledger) -> None:
    after(ledger, answer("b", 2), Refused("b", 3, "bad"), TeacherLost("b"))
    assert ledger.in_flight_at("a") == (1,)
    assert after(ledger, Refused("a", 1, "bad")) == [
        Poison(0, ("a: bad",)),
        Deliver(1),
        Send(5, "a", whole(2), 2),
    ]
    assert after(ledger, Refused("a", 5, "worse"))[0] == Poison(2, ("b: bad", "a: worse"))

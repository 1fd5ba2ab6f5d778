"""Copies of requests, and refused batches."""

from __future__ import annotations

import pytest

from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger import events as ev

from .driver import after, answer, queued, whole


class TestNamedCopies:
    """A canary or a probe: a copy for one teacher, even one that is not to label."""

    def test_copy_on_trial_never_counts(self, ledger: Ledger) -> None:
        after(ledger, ev.Ejected("quick"))
        assert after(ledger, ev.Hedge(1, "quick")) == [ev.Send(1, "quick", whole(0), 2)]
        assert (ledger.hedges, ledger.probes) == (0, 1)
        assert after(ledger, answer("quick", 1)) == [ev.Discard(1, "quick")]
        assert after(ledger, answer("slow", 1)) == [ev.Accept(1, whole(0)), ev.Deliver(0)]

    def test_resting_teacher_may_be_named(self, ledger: Ledger) -> None:
        after(ledger, *queued(1), ev.Failed("quick", 2))
        assert ledger.usable == 1
        assert after(ledger, ev.Hedge(1, "quick")) == [ev.Send(1, "quick", whole(0), 2)]

    def test_named_copy_waits_for_that_teacher(self, ledger: Ledger) -> None:
        after(ledger, *queued(1), ev.TeacherJoined("idle", 1))
        assert after(ledger, ev.Hedge(1, "quick")) == []
        assert after(ledger, answer("quick", 2))[-1] == ev.Send(1, "quick", whole(0), 2)

    @pytest.mark.parametrize("name", ["slow", "nobody"])
    def test_impossible_named_copy_lapses(self, ledger: Ledger, name: str) -> None:
        assert after(ledger, ev.Hedge(1, name), ev.WindowChanged("slow", 9)) == []

    def test_named_copy_lapses_when_the_teacher_is_revoked(self, ledger: Ledger) -> None:
        after(ledger, *queued(1), ev.Hedge(1, "quick"), ev.TeacherRevoked("quick"))
        assert after(ledger, answer("quick", 2)) == [ev.Accept(2, whole(1))]


@pytest.fixture
def ledger() -> Ledger:
    """Batch 0 is in flight at `slow`; `quick` has room."""
    ledger = Ledger()
    after(ledger, ev.TeacherJoined("slow", 1), *queued(0), ev.TeacherJoined("quick", 1))
    return ledger


class TestHedges:
    def test_first_answer_counts(self, ledger: Ledger) -> None:
        assert after(ledger, ev.Hedge(1)) == [ev.Send(1, "quick", whole(0), 2)]
        assert (ledger.hedges, ledger.resends, ledger.sent) == (1, 0, 1)
        assert after(ledger, answer("quick", 1)) == [ev.Accept(1, whole(0)), ev.Deliver(0)]
        assert ledger.labelled_by(0) == ((whole(0)[0], "quick"),)
        assert after(ledger, answer("slow", 1)) == [ev.Discard(1, "slow")]
        assert ledger.volume_bytes == 110

    def test_hedge_waits_for_room_and_goes_first(self, ledger: Ledger) -> None:
        after(ledger, *queued(1, 2))
        assert ledger.in_flight_at("quick") == (2,)
        assert after(ledger, ev.Hedge(1)) == []
        assert after(ledger, answer("quick", 2)) == [
            ev.Accept(2, whole(1)),
            ev.Send(1, "quick", whole(0), 2),
        ]

    def test_hedges_are_sent_in_order_and_once(self, ledger: Ledger) -> None:
        after(ledger, *queued(1), ev.Hedge(1), ev.Hedge(1), ev.WindowChanged("quick", 4))
        assert ledger.in_flight_at("quick") == (2, 1)
        assert ledger.hedges == 1
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("slow", 2), *queued(0, 1), ev.Hedge(2), ev.Hedge(1))
        assert after(ledger, ev.TeacherJoined("quick", 1)) == [ev.Send(1, "quick", whole(0), 2)]
        assert after(ledger, ev.WindowChanged("quick", 2)) == [ev.Send(2, "quick", whole(1), 2)]

    def test_rest_of_a_request_and_unknown_requests(self, ledger: Ledger) -> None:
        assert after(ledger, ev.Hedge(77), ev.Hedge(77, "quick")) == []
        ledger = Ledger()
        after(ledger, *queued(0, 1, 2), ev.TeacherJoined("slow", 1, most_rows=30), ev.Forgo(1))
        after(ledger, ev.TeacherJoined("quick", 1, most_rows=30))
        left = (*whole(0), *whole(2))
        assert after(ledger, ev.Hedge(1)) == [ev.Send(2, "quick", left, 2)]
        assert (ledger.hedges, ledger.resends) == (0, 1)
        assert after(ledger, ev.Hedge(1), answer("slow", 1)) == [ev.Discard(1, "slow")]
        assert after(ledger, answer("quick", 2)) == [
            ev.Accept(2, left),
            ev.Deliver(0),
            ev.Deliver(1),
            ev.Deliver(2),
        ]


class TestRefusals:
    @pytest.fixture
    def ledger(self) -> Ledger:
        """Batches 0 and 1 are in flight at a and b, with a window of 1 each; 2 and 3 are queued."""
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 1), ev.TeacherJoined("b", 1), *queued(0, 1, 2, 3))
        return ledger

    def test_poison_after_enough_refusals(self, ledger: Ledger) -> None:
        after(ledger, ev.Refused("a", 1, "shape"), answer("b", 2))
        out = after(ledger, ev.Refused("b", 4, "dtype"))
        assert out == [
            ev.Poison(0, ("a: shape", "b: dtype")),
            ev.Deliver(1),
            ev.Send(5, "b", whole(3), 1),
        ]
        ledger = Ledger()
        names = ("a", "b", "c", "d")
        after(ledger, *(ev.TeacherJoined(name, 1) for name in names), *queued(0))
        out = after(ledger, *(ev.Refused(name, i, "bad") for i, name in enumerate(names[:3], 1)))
        assert out == [
            ev.Send(2, "b", whole(0), 2),
            ev.Send(3, "c", whole(0), 3),
            ev.Poison(0, ("a: bad", "b: bad", "c: bad")),
        ]
        assert ledger.queued == ledger.unlabelled == 0
        ledger = Ledger(ordered=False)
        after(ledger, ev.TeacherJoined("a", 2), *queued(0, 1))
        assert after(ledger, ev.Refused("a", 2, "bad")) == [ev.Poison(1, ("a: bad",))]
        assert after(ledger, answer("a", 1))[-1] == ev.Deliver(0)

    def test_awaited_teachers(self) -> None:
        ledger = Ledger()
        after(ledger, ev.Awaited(2), ev.TeacherJoined("a", 1), ev.Awaited(1), *queued(0, 1))
        assert after(ledger, ev.Refused("a", 1, "bad")) == [ev.Send(2, "a", whole(1), 1)]
        assert ledger.refusers == {"a"}
        assert after(ledger, ev.TeacherJoined("b", 1), ev.Awaited(0)) == [
            ev.Send(3, "b", whole(0), 2)
        ]
        assert after(ledger, ev.Refused("b", 3, "bad")) == [ev.Poison(0, ("a: bad", "b: bad"))]
        assert ledger.refusers == frozenset()
        ledger = Ledger()
        after(ledger, ev.Awaited(1), ev.TeacherJoined("a", 1), *queued(0))
        assert after(ledger, ev.Refused("a", 1, "bad")) == []
        after(ledger, ev.Reset(), *queued(1))
        assert after(ledger, ev.Refused("a", 2, "bad")) == []
        assert after(ledger, ev.Awaited(0)) == [ev.Poison(1, ("a: bad",))]

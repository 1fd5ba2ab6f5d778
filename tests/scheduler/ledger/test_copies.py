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

    def test_rows_that_only_a_teacher_on_trial_has_are_queued(self, ledger: Ledger) -> None:
        after(ledger, ev.Ejected("quick"), ev.Hedge(1, "quick"), ev.TeacherLost("slow"))
        assert ledger.queued == 1
        assert after(ledger, ev.WindowChanged("quick", 2), ev.Readmitted("quick")) == [
            ev.Send(2, "quick", whole(0), 3)
        ]

    def test_trusted_teachers_copy_counts(self, ledger: Ledger) -> None:
        after(ledger, ev.Hedge(1, "quick"))
        assert after(ledger, answer("quick", 1)) == [ev.Accept(1, whole(0)), ev.Deliver(0)]
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("new", 2, on_trial=True), *queued(0))
        assert (ledger.on_trial, ledger.usable, ledger.queued) == (("new",), 0, 1)
        assert after(ledger, ev.Readmitted("new")) == [ev.Send(1, "new", whole(0), 1)]

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

    def test_late_teacher_may_still_answer_first(self, ledger: Ledger) -> None:
        after(ledger, ev.Hedge(1))
        assert after(ledger, answer("slow", 1)) == [ev.Accept(1, whole(0)), ev.Deliver(0)]
        assert after(ledger, answer("quick", 1)) == [ev.Discard(1, "quick")]

    def test_loser_keeps_its_window_until_it_ends(self, ledger: Ledger) -> None:
        after(ledger, ev.Hedge(1), answer("quick", 1))
        assert after(ledger, *queued(1, 2)) == [ev.Send(2, "quick", whole(1), 1)]
        assert ledger.in_flight_at("slow") == (1,)
        assert after(ledger, ev.Cancelled("slow", 1)) == [ev.Send(3, "slow", whole(2), 1)]

    @pytest.mark.parametrize(
        "end", [ev.TeacherLost("slow"), ev.Failed("slow", 1), ev.Cancelled("slow", 1)]
    )
    def test_rows_wait_when_the_last_copy_ends(
        self, ledger: Ledger, end: ev.TeacherLost | ev.Failed | ev.Cancelled
    ) -> None:
        after(ledger, ev.Hedge(1), ev.WindowChanged("quick", 2))
        assert after(ledger, end) == []
        assert ledger.queued == 0
        assert after(ledger, ev.Ejected("slow"), ev.Failed("quick", 1)) == []
        assert ledger.queued == 1
        assert after(ledger, ev.TeacherJoined("new", 1)) == [ev.Send(2, "new", whole(0), 3)]

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

    def test_third_copy_goes_to_a_third_teacher(self, ledger: Ledger) -> None:
        after(ledger, ev.Hedge(1), ev.Hedge(1))
        assert after(ledger, ev.TeacherJoined("third", 1)) == [ev.Send(1, "third", whole(0), 3)]
        assert ledger.request(1) is not None
        assert after(ledger, answer("third", 1))[0] == ev.Accept(1, whole(0))

    @pytest.mark.parametrize(
        "over", [answer("slow", 1), ev.TeacherLost("slow"), ev.Forgo(0), ev.Reset()]
    )
    def test_hedge_lapses_with_its_request(self, ledger: Ledger, over: ev.Reset) -> None:
        after(ledger, *queued(1), ev.Hedge(1), over)
        after(ledger, ev.WindowChanged("quick", 9), ev.TeacherJoined("more", 9))
        assert ledger.hedges == 0

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

    def test_hedge_avoids_teachers_that_refused(self, ledger: Ledger) -> None:
        after(ledger, ev.Hedge(1))
        assert after(ledger, ev.Refused("quick", 1, "bad"), ev.Hedge(1), ev.Hedge(1, "quick")) == []
        assert after(ledger, ev.Refused("slow", 1, "bad")) == [
            ev.Poison(0, ("quick: bad", "slow: bad"))
        ]


class TestRefusals:
    @pytest.fixture
    def ledger(self) -> Ledger:
        """Batches 0 and 1 are in flight at a and b, with a window of 1 each; 2 and 3 are queued."""
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 1), ev.TeacherJoined("b", 1), *queued(0, 1, 2, 3))
        return ledger

    def test_refused_batch_goes_to_another_teacher_only(self, ledger: Ledger) -> None:
        assert after(ledger, ev.Refused("a", 1, "shape")) == [ev.Send(3, "a", whole(2), 1)]
        assert after(ledger, answer("a", 3))[-1] == ev.Send(
            4, "a", whole(3), 1
        )  # not 0, which is ahead
        assert after(ledger, answer("b", 2))[-1] == ev.Send(5, "b", whole(0), 2)
        out = after(ledger, answer("b", 5))
        assert out == [ev.Accept(5, whole(0)), ev.Deliver(0), ev.Deliver(1), ev.Deliver(2)]

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

    def test_resting_teacher_is_awaited(self, ledger: Ledger) -> None:
        after(ledger, ev.Failed("b", 2))
        assert after(ledger, ev.Refused("a", 1, "bad"), answer("a", 3))[0] == ev.Send(
            3, "a", whole(1), 2
        )
        assert after(ledger, ev.Resumed("b")) == [ev.Send(5, "b", whole(0), 2)]

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

    def test_busy_teacher_is_awaited(self, ledger: Ledger) -> None:
        assert after(ledger, ev.Refused("a", 1, "bad")) == [ev.Send(3, "a", whole(2), 1)]
        assert ev.Poison(0, ("a: bad",)) in after(ledger, ev.TeacherLost("b"))

    def test_teacher_on_trial_is_not_awaited(self, ledger: Ledger) -> None:
        after(ledger, ev.Refused("a", 1, "bad"))
        assert ev.Poison(0, ("a: bad",)) in after(ledger, ev.Ejected("b"))

    def test_without_teachers_the_next_decides(self) -> None:
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 1), *queued(0), ev.TeacherRevoked("a"))
        assert after(ledger, ev.Refused("a", 1, "bad")) == []
        assert after(ledger, ev.TeacherJoined("b", 1), answer("b", 2)) == [
            ev.Send(2, "b", whole(0), 2),
            ev.Accept(2, whole(0)),
            ev.Deliver(0),
        ]
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 1), *queued(0), ev.TeacherRevoked("a"))
        assert after(ledger, ev.Refused("a", 1, "bad")) == []
        assert after(ledger, ev.TeacherJoined("a", 1)) == [ev.Poison(0, ("a: bad",))]
        ledger = Ledger()
        after(
            ledger, ev.TeacherJoined("a", 1), *queued(0), ev.Ejected("a"), ev.Refused("a", 1, "bad")
        )
        assert ledger.queued == 1, "nobody is there"
        assert after(ledger, ev.Readmitted("a")) == [ev.Poison(0, ("a: bad",))]
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 1), ev.TeacherJoined("b", 1), *queued(0, 1))
        after(ledger, ev.Refused("a", 1, "bad"), ev.TeacherLost("a"), ev.TeacherJoined("a", 1))
        assert ledger.in_flight_at("a") == ()
        assert ledger.queued == 1

    def test_revoked_teacher_may_fail_last(self, ledger: Ledger) -> None:
        after(ledger, ev.Refused("a", 1, "bad"), answer("b", 2), ev.TeacherRevoked("b"))
        assert ledger.in_flight_at("b") == (4,)
        assert ev.Poison(0, ("a: bad",)) in after(ledger, ev.Failed("b", 4))

    def test_poison_keeps_its_place_in_line(self, ledger: Ledger) -> None:
        after(ledger, answer("b", 2), ev.Refused("b", 3, "bad"), ev.TeacherLost("b"))
        assert ledger.in_flight_at("a") == (1,)
        assert after(ledger, ev.Refused("a", 1, "bad")) == [
            ev.Poison(0, ("a: bad",)),
            ev.Deliver(1),
            ev.Send(5, "a", whole(2), 2),
        ]
        assert after(ledger, ev.Refused("a", 5, "worse"))[0] == ev.Poison(2, ("b: bad", "a: worse"))

"""Copies of requests: when they are sent, to whom, and which of the answers counts."""

from __future__ import annotations

import pytest

from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger.events import (
    Accept,
    Cancelled,
    Deliver,
    Discard,
    Ejected,
    Failed,
    Forgo,
    Hedge,
    Poison,
    Readmitted,
    Refused,
    Reset,
    Send,
    TeacherJoined,
    TeacherLost,
    TeacherRevoked,
    WindowChanged,
)

from .telling import after, answer, queued, whole


@pytest.fixture
def ledger() -> Ledger:
    """Batch 0 is in flight at `slow`; `quick` has room."""
    ledger = Ledger()
    after(ledger, TeacherJoined("slow", 1), *queued(0), TeacherJoined("quick", 1))
    return ledger


def test_the_same_rows_go_to_another_teacher_and_the_first_answer_counts(ledger: Ledger) -> None:
    assert after(ledger, Hedge(1)) == [Send(1, "quick", whole(0), 2)]
    assert (ledger.hedges, ledger.resends, ledger.sent) == (1, 0, 1)
    assert after(ledger, answer("quick", 1)) == [Accept(1, whole(0)), Deliver(0)]
    assert ledger.labelled_by(0) == ((whole(0)[0], "quick"),)
    assert after(ledger, answer("slow", 1)) == [Discard(1, "slow")]
    assert ledger.volume_bytes == 110


def test_the_one_that_was_late_may_still_be_first(ledger: Ledger) -> None:
    after(ledger, Hedge(1))
    assert after(ledger, answer("slow", 1)) == [Accept(1, whole(0)), Deliver(0)]
    assert after(ledger, answer("quick", 1)) == [Discard(1, "quick")]


def test_the_loser_keeps_its_window_until_it_ends(ledger: Ledger) -> None:
    after(ledger, Hedge(1), answer("quick", 1))
    assert after(ledger, *queued(1, 2)) == [Send(2, "quick", whole(1), 1)]
    assert ledger.in_flight_at("slow") == (1,)
    assert after(ledger, Cancelled("slow", 1)) == [Send(3, "slow", whole(2), 1)]


@pytest.mark.parametrize("end", [TeacherLost("slow"), Failed("slow", 1), Cancelled("slow", 1)])
def test_while_one_of_them_is_at_work_the_rows_do_not_wait(
    ledger: Ledger, end: TeacherLost | Failed | Cancelled
) -> None:
    after(ledger, Hedge(1), WindowChanged("quick", 2))
    assert after(ledger, end) == []
    assert ledger.queued == 0
    assert after(ledger, Ejected("slow"), Failed("quick", 1)) == []
    assert ledger.queued == 1
    assert after(ledger, TeacherJoined("new", 1)) == [Send(2, "new", whole(0), 3)]


def test_it_waits_for_room_and_goes_before_what_is_queued(ledger: Ledger) -> None:
    after(ledger, *queued(1, 2))
    assert ledger.in_flight_at("quick") == (2,)
    assert after(ledger, Hedge(1)) == []
    assert after(ledger, answer("quick", 2)) == [
        Accept(2, whole(1)),
        Send(1, "quick", whole(0), 2),
    ]


def test_the_first_rows_are_hedged_first() -> None:
    ledger = Ledger()
    after(ledger, TeacherJoined("slow", 2), *queued(0, 1), Hedge(2), Hedge(1))
    assert after(ledger, TeacherJoined("quick", 1)) == [Send(1, "quick", whole(0), 2)]
    assert after(ledger, WindowChanged("quick", 2)) == [Send(2, "quick", whole(1), 2)]


def test_asking_twice_is_asking_once_while_it_waits(ledger: Ledger) -> None:
    after(ledger, *queued(1), Hedge(1), Hedge(1), WindowChanged("quick", 4))
    assert ledger.in_flight_at("quick") == (2, 1)
    assert ledger.hedges == 1


def test_a_third_copy_goes_to_a_third_teacher(ledger: Ledger) -> None:
    after(ledger, Hedge(1), Hedge(1))
    assert after(ledger, TeacherJoined("third", 1)) == [Send(1, "third", whole(0), 3)]
    assert ledger.request(1) is not None
    assert after(ledger, answer("third", 1))[0] == Accept(1, whole(0))


@pytest.mark.parametrize("over", [answer("slow", 1), TeacherLost("slow"), Forgo(0), Reset()])
def test_it_lapses_when_the_request_is_over(ledger: Ledger, over: Reset) -> None:
    after(ledger, *queued(1), Hedge(1), over)
    after(ledger, WindowChanged("quick", 9), TeacherJoined("more", 9))
    assert ledger.hedges == 0


def test_what_is_left_of_a_request_is_sent_as_one_of_its_own() -> None:
    ledger = Ledger()
    after(ledger, *queued(0, 1, 2), TeacherJoined("slow", 1, most_rows=30), Forgo(1))
    after(ledger, TeacherJoined("quick", 1, most_rows=30))
    left = (*whole(0), *whole(2))
    assert after(ledger, Hedge(1)) == [Send(2, "quick", left, 2)]
    assert (ledger.hedges, ledger.resends) == (0, 1)
    assert after(ledger, Hedge(1), answer("slow", 1)) == [Discard(1, "slow")]
    assert after(ledger, answer("quick", 2)) == [
        Accept(2, left),
        Deliver(0),
        Deliver(1),
        Deliver(2),
    ]


def test_of_a_request_that_is_not_known_nothing_comes(ledger: Ledger) -> None:
    assert after(ledger, Hedge(77), Hedge(77, "quick")) == []


def test_it_never_goes_to_one_that_refused_the_batch(ledger: Ledger) -> None:
    after(ledger, Hedge(1))
    assert after(ledger, Refused("quick", 1, "bad"), Hedge(1), Hedge(1, "quick")) == []
    assert after(ledger, Refused("slow", 1, "bad")) == [Poison(0, ("quick: bad", "slow: bad"))]


class TestNamed:
    """A canary or a probe: a copy for one teacher, even one that is not to label."""

    def test_what_is_sent_on_trial_never_counts(self, ledger: Ledger) -> None:
        after(ledger, Ejected("quick"))
        assert after(ledger, Hedge(1, "quick")) == [Send(1, "quick", whole(0), 2)]
        assert (ledger.hedges, ledger.probes) == (0, 1)
        assert after(ledger, answer("quick", 1)) == [Discard(1, "quick")]
        assert after(ledger, answer("slow", 1)) == [Accept(1, whole(0)), Deliver(0)]

    def test_rows_that_only_one_on_trial_has_wait_for_another(self, ledger: Ledger) -> None:
        after(ledger, Ejected("quick"), Hedge(1, "quick"), TeacherLost("slow"))
        assert ledger.queued == 1
        assert after(ledger, WindowChanged("quick", 2), Readmitted("quick")) == [
            Send(2, "quick", whole(0), 3)
        ]

    def test_one_that_may_label_is_counted_on(self, ledger: Ledger) -> None:
        after(ledger, Hedge(1, "quick"))
        assert after(ledger, answer("quick", 1)) == [Accept(1, whole(0)), Deliver(0)]

    def test_a_teacher_that_joins_on_trial_gets_nothing_else(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("new", 2, on_trial=True), *queued(0))
        assert (ledger.on_trial, ledger.usable, ledger.queued) == (("new",), 0, 1)
        assert after(ledger, Readmitted("new")) == [Send(1, "new", whole(0), 1)]

    def test_a_resting_one_may_be_named(self, ledger: Ledger) -> None:
        after(ledger, *queued(1), Failed("quick", 2))
        assert ledger.usable == 1
        assert after(ledger, Hedge(1, "quick")) == [Send(1, "quick", whole(0), 2)]

    def test_it_waits_for_room_there_and_nowhere_else(self, ledger: Ledger) -> None:
        after(ledger, *queued(1), TeacherJoined("idle", 1))
        assert after(ledger, Hedge(1, "quick")) == []
        assert after(ledger, answer("quick", 2))[-1] == Send(1, "quick", whole(0), 2)

    @pytest.mark.parametrize("name", ["slow", "nobody"])
    def test_it_lapses_where_it_cannot_be(self, ledger: Ledger, name: str) -> None:
        assert after(ledger, Hedge(1, name), WindowChanged("slow", 9)) == []

    def test_it_lapses_when_the_teacher_is_revoked(self, ledger: Ledger) -> None:
        after(ledger, *queued(1), Hedge(1, "quick"), TeacherRevoked("quick"))
        assert after(ledger, answer("quick", 2)) == [Accept(2, whole(1))]

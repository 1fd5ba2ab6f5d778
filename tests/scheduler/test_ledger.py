"""Each rule of the ledger by one example that can be read; all together: tests/properties."""

from __future__ import annotations

import pytest

from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger_events import (
    Answered,
    Deliver,
    Discard,
    Event,
    Failed,
    Held,
    Instruction,
    Poison,
    Queued,
    Refused,
    Reset,
    Resumed,
    Send,
    Taken,
    TeacherJoined,
    TeacherLost,
    TeacherRevoked,
    WindowChanged,
)


def after(ledger: Ledger, *events: Event) -> list[Instruction]:
    """What all the events together command; the ledger is checked after each."""
    out: list[Instruction] = []
    for event in events:
        out += ledger.handle(event)
        ledger.validate()
    return out


def answer(teacher: str, batch: int, seconds: float = 0.1) -> Answered:
    return Answered(teacher, batch, nbytes=10, seconds=seconds)


@pytest.fixture
def ledger() -> Ledger:
    """Teachers a and b with one window each, batches 0 and 1 in flight there, 2 and 3 queued."""
    ledger = Ledger()
    out = after(
        ledger,
        TeacherJoined("a", 1),
        TeacherJoined("b", 1),
        *(Queued(batch, 100) for batch in range(4)),
    )
    assert out == [Send(0, "a", 1), Send(1, "b", 1)]
    return ledger


class TestOrder:
    def test_a_batch_waits_for_the_earlier_ones(self, ledger: Ledger) -> None:
        assert after(ledger, answer("b", 1)) == [Send(2, "b", 1)]
        assert ledger.volume_bytes == 110
        assert ledger.deliverable == 0
        assert after(ledger, answer("a", 0)) == [Deliver(0), Deliver(1), Send(3, "a", 1)]
        assert (ledger.deliverable, ledger.volume_bytes) == (2, 220)

    def test_what_is_taken_is_no_volume_any_more(self, ledger: Ledger) -> None:
        after(ledger, answer("a", 0), Taken(0))
        assert (ledger.deliverable, ledger.volume_bytes) == (0, 0)

    def test_a_batch_cannot_be_taken_before_it_is_delivered(self, ledger: Ledger) -> None:
        with pytest.raises(ValueError, match="batch 1 was taken, but it is in flight"):
            ledger.handle(Taken(1))

    def test_ids_grow(self, ledger: Ledger) -> None:
        with pytest.raises(ValueError, match="batch 3 comes after batch 3"):
            ledger.handle(Queued(3, 100))


class TestLoss:
    def test_a_lost_batch_goes_to_the_front(self, ledger: Ledger) -> None:
        assert after(ledger, TeacherLost("a")) == []
        assert after(ledger, answer("b", 1)) == [Send(0, "b", 2)]
        assert ledger.resends == 1

    def test_several_lost_batches_keep_their_order(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("a", 3), *(Queued(batch, 1) for batch in range(5)))
        assert ledger.in_flight_at("a") == (0, 1, 2)
        out = after(ledger, TeacherLost("a"), TeacherJoined("b", 4))
        assert out == [Send(0, "b", 2), Send(1, "b", 2), Send(2, "b", 2), Send(3, "b", 1)]

    def test_a_teacher_that_is_free_gets_it_at_once(self, ledger: Ledger) -> None:
        after(ledger, WindowChanged("b", 3))
        assert ledger.in_flight_at("b") == (1, 2, 3)
        after(ledger, WindowChanged("b", 4))
        assert after(ledger, TeacherLost("a")) == [Send(0, "b", 2)]

    def test_a_late_answer_of_a_lost_teacher_is_discarded(self, ledger: Ledger) -> None:
        after(ledger, TeacherLost("a"))
        assert after(ledger, answer("a", 0)) == [Discard(0, "a")]
        assert ledger.volume_bytes == 0

    def test_nobody_minds_the_loss_of_a_stranger(self, ledger: Ledger) -> None:
        assert after(ledger, TeacherLost("x"), TeacherRevoked("x"), Resumed("x")) == []

    def test_a_teacher_that_comes_back_starts_anew(self, ledger: Ledger) -> None:
        after(ledger, TeacherLost("a"))
        assert after(ledger, TeacherJoined("a", 1)) == [Send(0, "a", 2)]


class TestFailure:
    def test_it_goes_elsewhere_and_the_teacher_rests(self, ledger: Ledger) -> None:
        assert after(ledger, Failed("a", 0)) == []
        assert (ledger.usable, ledger.windows, ledger.free_windows) == (1, 1, 0)
        assert ledger.teachers == ("a", "b")
        assert after(ledger, answer("b", 1)) == [Send(0, "b", 2)]

    def test_a_rested_teacher_may_have_the_same_batch_again(self, ledger: Ledger) -> None:
        assert after(ledger, Failed("a", 0), Resumed("a")) == [Send(0, "a", 2)]

    def test_its_other_requests_go_on(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("a", 2), Queued(0, 1), Queued(1, 1), Failed("a", 0))
        assert ledger.in_flight_at("a") == (1,)
        assert after(ledger, answer("a", 1), Resumed("a"), answer("a", 0)) == [
            Send(0, "a", 2),
            Deliver(0),
            Deliver(1),
        ]


class TestRevocation:
    def test_it_finishes_what_it_has_and_gets_nothing_new(self, ledger: Ledger) -> None:
        assert after(ledger, TeacherRevoked("a")) == []
        assert ledger.teachers == ("b",)
        assert after(ledger, answer("a", 0)) == [Deliver(0)]
        assert ledger.in_flight == 1
        assert after(ledger, answer("a", 0)) == [Discard(0, "a")]  # it is a stranger now

    def test_it_may_come_back_before_it_is_done(self, ledger: Ledger) -> None:
        out = after(ledger, TeacherRevoked("a"), TeacherJoined("a", 2), answer("a", 0))
        assert out == [Send(2, "a", 1), Deliver(0), Send(3, "a", 1)]


class TestRefusal:
    def test_a_refused_batch_goes_to_another_teacher_only(self, ledger: Ledger) -> None:
        assert after(ledger, Refused("a", 0, "shape")) == [Send(2, "a", 1)]
        assert after(ledger, answer("a", 2)) == [Send(3, "a", 1)]  # not 0, which is ahead
        assert after(ledger, answer("b", 1)) == [Send(0, "b", 2)]
        assert after(ledger, answer("b", 0)) == [Deliver(0), Deliver(1), Deliver(2)]

    def test_all_there_are_is_poison(self, ledger: Ledger) -> None:
        after(ledger, Refused("a", 0, "shape"), answer("b", 1))
        out = after(ledger, Refused("b", 0, "dtype"))
        assert out == [Poison(0, ("a: shape", "b: dtype")), Deliver(1), Send(3, "b", 1)]

    def test_three_are_enough_however_many_there_are(self) -> None:
        ledger = Ledger()
        names = ("a", "b", "c", "d")
        after(ledger, *(TeacherJoined(name, 1) for name in names), Queued(0, 1))
        out = after(ledger, *(Refused(name, 0, "bad") for name in names[:3]))
        assert out == [Send(0, "b", 2), Send(0, "c", 3), Poison(0, ("a: bad", "b: bad", "c: bad"))]
        assert ledger.queued == ledger.unlabelled == 0

    def test_one_that_rests_is_waited_for(self, ledger: Ledger) -> None:
        after(ledger, Failed("b", 1))
        assert after(ledger, Refused("a", 0, "bad"), answer("a", 1)) == [
            Send(1, "a", 2),
            Send(2, "a", 1),
        ]
        assert after(ledger, Resumed("b")) == [Send(0, "b", 2)]

    def test_one_that_is_busy_is_waited_for(self, ledger: Ledger) -> None:
        assert after(ledger, Refused("a", 0, "bad")) == [Send(2, "a", 1)]
        assert after(ledger, TeacherLost("b"))[-1] == Poison(0, ("a: bad",))

    def test_with_nobody_there_the_next_teacher_decides(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("a", 1), Queued(0, 1), TeacherRevoked("a"))
        assert after(ledger, Refused("a", 0, "bad")) == []
        assert after(ledger, TeacherJoined("b", 1), answer("b", 0)) == [Send(0, "b", 2), Deliver(0)]

    def test_with_nobody_there_who_comes_back_has_refused_already(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("a", 1), Queued(0, 1), TeacherRevoked("a"))
        assert after(ledger, Refused("a", 0, "bad")) == []
        assert after(ledger, TeacherJoined("a", 1)) == [Poison(0, ("a: bad",))]

    def test_the_same_teacher_counts_once_in_all_its_lives(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("a", 1), TeacherJoined("b", 1), Queued(0, 1), Queued(1, 1))
        after(ledger, Refused("a", 0, "bad"), TeacherLost("a"), TeacherJoined("a", 1))
        assert ledger.in_flight_at("a") == ()
        assert ledger.queued == 1

    def test_the_last_hope_may_fail_on_its_way_out(self, ledger: Ledger) -> None:
        after(ledger, Refused("a", 0, "bad"), answer("b", 1), TeacherRevoked("b"))
        assert ledger.in_flight_at("b") == (0,)
        assert Poison(0, ("a: bad",)) in after(ledger, Failed("b", 0))

    def test_poison_keeps_its_place_in_the_line(self, ledger: Ledger) -> None:
        after(ledger, answer("b", 1), Refused("b", 2, "bad"), TeacherLost("b"))
        assert ledger.in_flight_at("a") == (0,)
        assert after(ledger, Refused("a", 0, "bad")) == [
            Poison(0, ("a: bad",)),
            Deliver(1),
            Send(2, "a", 2),
        ]
        assert after(ledger, Refused("a", 2, "worse"))[0] == Poison(2, ("b: bad", "a: worse"))


class TestPlacement:
    def test_the_shortest_expected_finish_wins(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("slow", 4, 0.3), TeacherJoined("fast", 4, 0.1))
        out = after(ledger, *(Queued(batch, 1) for batch in range(5)))
        where = [send.teacher for send in out if isinstance(send, Send)]
        assert where == ["fast", "fast", "slow", "fast", "fast"]

    def test_speeds_are_learned_from_answers(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("a", 1), TeacherJoined("b", 1), Queued(0, 1), Queued(1, 1))
        after(ledger, answer("a", 0, seconds=0.5), answer("b", 1, seconds=0.1))
        assert after(ledger, Queued(2, 1)) == [Send(2, "b", 1)]

    @pytest.mark.parametrize("unknown", [0.0, -1.0])
    def test_an_answer_without_a_time_teaches_nothing(self, unknown: float) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("a", 1, 0.3), TeacherJoined("b", 1, 0.2))
        after(ledger, Queued(0, 1), Queued(1, 1), answer("a", 1, unknown), answer("b", 0, 0.2))
        assert after(ledger, Queued(2, 1)) == [Send(2, "b", 1)]

    def test_unknown_speeds_spread_the_work(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("a", 2), TeacherJoined("b", 2))
        out = after(ledger, *(Queued(batch, 1) for batch in range(4)))
        assert [send.teacher for send in out if isinstance(send, Send)] == ["a", "b", "a", "b"]

    def test_a_window_is_at_least_one(self) -> None:
        with pytest.raises(ValueError, match="window of at least 1"):
            TeacherJoined("a", 0)
        with pytest.raises(ValueError, match="window of at least 1"):
            WindowChanged("a", 0)

    def test_a_narrowed_window_runs_out(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("a", 2), *(Queued(batch, 1) for batch in range(4)))
        assert after(ledger, WindowChanged("a", 1), answer("a", 0)) == [Deliver(0)]
        assert after(ledger, answer("a", 1)) == [Deliver(1), Send(2, "a", 1)]


class TestEpochsAndRestarts:
    def test_a_reset_forgets_batches_and_keeps_windows_filled(self, ledger: Ledger) -> None:
        after(ledger, answer("a", 0))
        assert after(ledger, Reset()) == []
        assert (ledger.volume_bytes, ledger.deliverable, ledger.unlabelled) == (0, 0, 0)
        assert ledger.in_flight == 2
        assert after(ledger, Queued(9, 1)) == []
        assert after(ledger, answer("b", 1)) == [Discard(1, "b"), Send(9, "b", 1)]
        assert after(ledger, Taken(0)) == []  # posted before the reset was known

    def test_ids_grow_over_epochs(self, ledger: Ledger) -> None:
        after(ledger, Reset())
        with pytest.raises(ValueError, match="batch 3 comes after batch 3"):
            ledger.handle(Queued(3, 100))

    def test_held_batches_are_volume_and_never_delivered(self) -> None:
        ledger = Ledger()
        out = after(ledger, Held(4, 110), Held(5, 110), Queued(6, 100), TeacherJoined("a", 1))
        assert out == [Send(6, "a", 1)]
        assert (ledger.volume_bytes, ledger.deliverable) == (220, 2)
        assert after(ledger, answer("a", 6), Taken(4), Taken(5), Taken(6)) == [Deliver(6)]
        assert ledger.volume_bytes == 0

    def test_held_comes_first(self, ledger: Ledger) -> None:
        with pytest.raises(ValueError, match="earlier ones are not delivered"):
            ledger.handle(Held(9, 1))

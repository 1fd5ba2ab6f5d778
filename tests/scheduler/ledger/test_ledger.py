"""Which teacher gets rows, and what follows from crashes, copies and renewed labels; figures.

The machine in tests/properties holds every row, copy and refusal against a model of its own. Here
is what it leaves open, and what few of its examples come to.
"""

from __future__ import annotations

import pytest

from edl.scheduler.ledger import InFlight, Ledger
from edl.scheduler.ledger import events as ev

from .invariants import check


def after(ledger: Ledger, *events: ev.Event) -> list[ev.Instruction]:
    """Handle events and return all instructions; the ledger is checked after each event."""
    out: list[ev.Instruction] = []
    for event in events:
        out += ledger.handle(event)
        check(ledger)
    return out


def ledger_after(*events: ev.Event) -> Ledger:
    """A new ledger that has handled these events."""
    ledger = Ledger()
    after(ledger, *events)
    return ledger


def answer(teacher: str, request: int, device_s: float = 0.1) -> ev.Answered:
    return ev.Answered(teacher, request, row_nbytes=1, device_s=device_s)


def queued(*batches: int, rows: int = 10) -> tuple[ev.Queued, ...]:
    """Batches of 100 bytes."""
    return tuple(ev.Queued(batch, 100, rows) for batch in batches)


def whole(batch: int, rows: int = 10) -> tuple[ev.Span, ...]:
    """The spans of a request that is all of one batch."""
    return (ev.Span(batch, 0, rows),)


def sends(out: list[ev.Instruction]) -> list[ev.Send]:
    return [instruction for instruction in out if isinstance(instruction, ev.Send)]


def rows_sent(out: list[ev.Instruction]) -> list[list[tuple[int, int, int]]]:
    """The spans of each `Send`, as plain tuples."""
    return [[(s.batch, s.start, s.stop) for s in send.spans] for send in sends(out)]


class TestSizes:
    @pytest.mark.parametrize("missing", [((0, 11),), ((3, 3),), ((5, 7), (6, 8)), ((-1, 2),)])
    def test_invalid_rows_are_refused(self, missing: tuple[tuple[int, int], ...]) -> None:
        with pytest.raises(ValueError, match="lie within 10 rows"):
            Ledger().handle(ev.Queued(0, 100, 10, missing))

    @pytest.mark.parametrize("missing", [None, ()])
    def test_empty_batch_is_refused(self, missing: tuple[tuple[int, int], ...] | None) -> None:
        with pytest.raises(ValueError, match="at least 1 row, not 0"):
            Ledger().handle(ev.Queued(0, 100, 0, missing))

    def test_batches_are_joined_up_to_the_size(self) -> None:
        ledger = ledger_after(*queued(0, 1, 2))
        out = after(ledger, ev.TeacherJoined("a", 2, most_rows=16))
        assert rows_sent(out) == [[(0, 0, 10), (1, 0, 6)], [(1, 6, 10), (2, 0, 10)]]
        ledger = ledger_after(*queued(0), ev.Queued(1, 100, 10, layout_id=1), *queued(2))
        out = after(ledger, ev.TeacherJoined("a", 3, most_rows=30))
        assert rows_sent(out) == [[(0, 0, 10)], [(1, 0, 10)], [(2, 0, 10)]]
        ledger = ledger_after(ev.TeacherJoined("a", 1), *queued(0, 1, 2))
        out = after(ledger, ev.RequestSizeChanged("a", 20), answer("a", 1))
        assert rows_sent(out) == [[(1, 0, 10), (2, 0, 10)]]

    def test_batches_of_a_refused_request_are_sent_alone(self) -> None:
        """So the next refusal shows which one it is."""
        ledger = ledger_after(ev.TeacherJoined("a", 1, most_rows=20), *queued(0, 1, 2))
        assert rows_sent(after(ledger, answer("a", 1))) == [[(1, 0, 10), (2, 0, 10)]]
        assert rows_sent(after(ledger, ev.Refused("a", 2, "one of them"))) == [[(1, 0, 10)]]
        assert rows_sent(after(ledger, answer("a", 3))) == [[(2, 0, 10)]]


def where(ledger: Ledger, *batches: int, rows: int = 10) -> list[str]:
    return [send.teacher for send in sends(after(ledger, *queued(*batches, rows=rows)))]


def at_speeds(window: int, **seconds_per_row: float | None) -> Ledger:
    """A ledger with teachers of these speeds."""
    speeds = seconds_per_row.items()
    return ledger_after(*(ev.TeacherJoined(name, window, None, speed) for name, speed in speeds))


class TestPlacement:
    def test_first_to_finish_gets_the_rows(self) -> None:
        ledger = at_speeds(4, slow=0.03, fast=0.01)
        assert where(ledger, 0, 1, 2, 3, 4) == ["fast", "fast", "slow", "fast", "fast"]
        ledger = at_speeds(4, a=0.01, b=0.01)
        assert where(ledger, 0, rows=30) == ["a"]
        assert where(ledger, 1, 2, 3, 4) == ["b", "b", "b", "a"]
        ledger = at_speeds(1, a=0.01)
        after(ledger, ev.TeacherJoined("b", 1, 5, 0.015))
        assert where(ledger, 0) == ["b", "a"]
        assert where(at_speeds(2, a=None, b=None), 0, 1, 2, 3) == ["a", "b", "a", "b"]

    def test_speeds_follow_the_answers(self) -> None:
        ledger = at_speeds(1, a=None, b=None)
        after(ledger, *queued(0, 1), answer("a", 1, device_s=0.5), answer("b", 2, device_s=0.1))
        assert where(ledger, 2) == ["b"]
        ledger = at_speeds(1, a=0.01, b=0.02)
        for request in range(1, 9):
            after(ledger, *queued(request))
            teacher = "a" if ledger.in_flight_at("a") else "b"
            after(ledger, answer(teacher, request, device_s=0.5 if teacher == "a" else 0.2))
        assert where(ledger, 9) == ["b"]

    @pytest.mark.parametrize("unknown", [0.0, -1.0])
    def test_answers_without_a_time_are_ignored(self, unknown: float) -> None:
        ledger = at_speeds(1, a=0.03, b=0.02)
        after(ledger, *queued(0, 1), answer("a", 2, unknown), answer("b", 1, 0.2))
        assert where(ledger, 2) == ["b"]


@pytest.fixture
def ledger() -> Ledger:
    """Batch 0 is in flight at `slow`; `quick` has room."""
    return ledger_after(ev.TeacherJoined("slow", 1), *queued(0), ev.TeacherJoined("quick", 1))


class TestCopies:
    def test_copy_on_trial_never_counts(self, ledger: Ledger) -> None:
        after(ledger, ev.Ejected("quick"))
        assert after(ledger, ev.Hedge(1, "quick")) == [ev.Send(1, "quick", whole(0), 2)]
        assert (ledger.hedges, ledger.named_copies) == (0, 1)
        assert after(ledger, answer("quick", 1)) == [ev.Discard(1, "quick")]

    def test_resting_teacher_may_be_named(self, ledger: Ledger) -> None:
        after(ledger, *queued(1), ev.AttemptFailed("quick", 2))
        assert after(ledger, ev.Hedge(1, "quick")) == [ev.Send(1, "quick", whole(0), 2)]

    def test_named_copy_waits_for_that_teacher(self, ledger: Ledger) -> None:
        after(ledger, *queued(1), ev.TeacherJoined("idle", 1))
        assert after(ledger, ev.Hedge(1, "quick")) == []
        assert after(ledger, answer("quick", 2))[-1] == ev.Send(1, "quick", whole(0), 2)

    def test_hedge_waits_for_room_and_goes_first(self, ledger: Ledger) -> None:
        after(ledger, *queued(1, 2))
        assert after(ledger, ev.Hedge(1)) == []
        assert sends(after(ledger, answer("quick", 2))) == [ev.Send(1, "quick", whole(0), 2)]

    def test_hedges_are_sent_in_order_and_once(self, ledger: Ledger) -> None:
        after(ledger, *queued(1), ev.Hedge(1), ev.Hedge(1), ev.WindowChanged("quick", 4))
        assert ledger.in_flight_at("quick") == (2, 1)
        assert ledger.hedges == 1
        ledger = ledger_after(ev.TeacherJoined("slow", 2), *queued(0, 1), ev.Hedge(2), ev.Hedge(1))
        assert after(ledger, ev.TeacherJoined("quick", 1)) == [ev.Send(1, "quick", whole(0), 2)]
        assert after(ledger, ev.WindowChanged("quick", 2)) == [ev.Send(2, "quick", whole(1), 2)]


class TestRefusals:
    @pytest.mark.parametrize("event", [ev.Refused, ev.AttemptFailed])
    def test_poison_after_enough_refusals(self, event: type[ev.Refused | ev.AttemptFailed]) -> None:
        """Three that label refuse a batch, or three predictors die of it."""
        names = ("a", "b", "c", "d")
        ledger = ledger_after(*(ev.TeacherJoined(name, 1) for name in names), *queued(0, 1, 2, 3))
        after(ledger, *(answer(name, i) for i, name in enumerate(names, 1)), *queued(4))
        out = after(ledger, *(event(name, i, "bad") for i, name in enumerate(names[:3], 5)))
        assert out[-1] == ev.Poison(4, ("a: bad", "b: bad", "c: bad"))

    def test_poison_where_all_refuse_that_there_are(self) -> None:
        ledger = ledger_after(ev.TeacherJoined("a", 2), *queued(0, 1))
        assert after(ledger, ev.Refused("a", 2, "bad")) == []
        assert ev.Poison(1, ("a: bad",)) in after(ledger, answer("a", 1))

    def test_refusals_by_teachers_that_label_nothing_do_not_count(self) -> None:
        """Three misconfigured teachers refuse all that they get; one that labels is enough."""
        wrong = ("u", "v", "w")
        ledger = ledger_after(ev.TeacherJoined("good", 1), *queued(0), answer("good", 1))
        after(ledger, *(ev.TeacherJoined(name, 1) for name in wrong), *queued(*range(1, 13)))
        for _ in range(3):
            for name in wrong:
                assert not ledger.is_useless(name)
                (request,) = ledger.in_flight_at(name)
                out = after(ledger, ev.Refused(name, request, "no such output"))
                assert not any(isinstance(one, ev.Poison) for one in out)
        assert all(map(ledger.is_useless, wrong))
        assert ledger.refusers == set(wrong)

    def test_a_copy_larger_than_its_requests_may_be_refused(self) -> None:
        ledger = ledger_after(ev.TeacherJoined("late", 3), *queued(0), answer("late", 1))
        after(ledger, *queued(1, 2, 3), ev.TeacherJoined("new", 1, most_rows=4))
        for request in (2, 3, 4):
            assert [one.teacher for one in sends(after(ledger, ev.Hedge(request)))] == ["new"]
            after(ledger, ev.Refused("new", request, "10 rows are more than 4"))
        assert not ledger.is_useless("new")

    def test_a_lone_teacher_that_refuses_all_there_is(self) -> None:
        """It is useless at once; when it is back it is asked the same again."""
        ledger = ledger_after(ev.TeacherJoined("a", 1), *queued(0, 1))
        after(ledger, ev.Refused("a", 1, "bad"))
        assert not ledger.is_useless("a"), "there is something else to ask it"
        assert after(ledger, ev.Refused("a", 2, "bad")) == []
        assert ledger.is_useless("a")
        out = after(ledger, ev.Ejected("a"), ev.TeacherJoined("a", 1))
        assert out == [ev.Send(3, "a", whole(0), 2)]
        assert not ledger.is_useless("a")


class TestCrashes:
    """A batch that crashes predictors counts as refused, by those that have labelled others."""

    def test_one_crash_at_a_lone_teacher_does_not_condemn_a_batch(self) -> None:
        ledger = ledger_after(ev.TeacherJoined("a", 1), *queued(0), answer("a", 1), *queued(1))
        for request in (2, 3):
            assert after(ledger, ev.AttemptFailed("a", request, "it died")) == []
            assert after(ledger, ev.TeacherJoined("a", 1)) == [
                ev.Send(request + 1, "a", whole(1), request)
            ]
        assert after(ledger, ev.AttemptFailed("a", 4, "it died")) == [ev.Poison(1, ("a: it died",))]

    def test_a_lone_teacher_that_crashes_on_its_first_batch_labels_another_before(self) -> None:
        ledger = ledger_after(
            ev.TeacherJoined("a", 1), *queued(0, 1), ev.AttemptFailed("a", 1, "x")
        )
        assert after(ledger, ev.Resumed("a")) == [ev.Send(2, "a", whole(1), 1)]
        assert after(ledger, answer("a", 2))[-1] == ev.Send(3, "a", whole(0), 2)
        after(ledger, ev.AttemptFailed("a", 3, "x"), ev.Resumed("a"))
        assert after(ledger, ev.AttemptFailed("a", 4, "x")) == [ev.Poison(0, ("a: x",))]

    def test_a_lone_teacher_that_all_batches_crash_gets_them_by_turns(self) -> None:
        ledger = ledger_after(ev.TeacherJoined("a", 1), *queued(0, 1, 2))
        batches = []
        for request in range(1, 7):
            after(ledger, ev.AttemptFailed("a", request, "it died"))
            (send,) = sends(after(ledger, ev.Resumed("a")))
            batches.append(send.spans[0].batch)
        assert batches == [1, 2, 0, 1, 2, 0]

    def test_a_crash_counts_once_however_many_gaps_the_batch_has(self) -> None:
        ledger = ledger_after(ev.TeacherJoined("a", 1), *queued(0), answer("a", 1))
        after(ledger, ev.Queued(1, 10, 100, missing=((0, 1), (2, 3), (4, 5))))
        assert after(ledger, ev.AttemptFailed("a", 2, "it died")) == []

    def test_a_crash_elsewhere_is_tried_by_the_others_first(self) -> None:
        ledger = ledger_after(ev.TeacherJoined("a", 1), ev.TeacherJoined("b", 1), *queued(0, 1))
        after(ledger, answer("a", 1), *queued(2), ev.AttemptFailed("a", 3, "it died"))
        assert after(ledger, ev.Resumed("a")) == [], "b is asked once it has room"
        assert ev.Send(4, "b", whole(2), 2) in after(ledger, answer("b", 2))

    def test_awaited_teachers_may_label_what_all_others_refuse(self) -> None:
        ledger = ledger_after(ev.Awaited(1), ev.TeacherJoined("a", 1), *queued(0), answer("a", 1))
        after(ledger, ev.Reset(), *queued(2))
        assert after(ledger, ev.Refused("a", 2, "bad")) == []
        assert after(ledger, ev.Awaited(0)) == [ev.Poison(2, ("a: bad",))]


class TestRenewal:
    def test_only_its_own_rows_are_labelled_anew(self) -> None:
        ledger = ledger_after(ev.Queued(0, 100, 10, ((2, 10),)))
        after(ledger, ev.TeacherJoined("liar", 1, 4), ev.TeacherJoined("honest", 1, 4))
        assert after(ledger, answer("honest", 2), answer("liar", 1))[-1] == ev.BatchLabelled(0)
        out = after(ledger, ev.InvalidateTeacher("liar"))
        assert out == [
            ev.LabelsRevoked(0, whole=False),
            ev.Send(3, "honest", (ev.Span(0, 2, 6),), 2),
        ]
        assert after(ledger, answer("honest", 3))[-1] == ev.BatchLabelled(0)

    def test_labels_of_an_engine_before_are_void_together(self) -> None:
        ledger = ledger_after(
            ev.BatchRestored(0, 110, 10, makers=("honest", "liar")), ev.BatchRestored(1, 110)
        )
        assert after(ledger, ev.InvalidateTeacher("liar")) == [ev.LabelsRevoked(0, whole=True)]

    def test_what_is_left_of_a_late_request_is_sent_anew(self) -> None:
        ledger = ledger_after(*queued(0, 1, 2), ev.TeacherJoined("slow", 1, most_rows=30))
        after(ledger, ev.DeliverUnlabelled(1), ev.TeacherJoined("quick", 1, most_rows=30))
        assert after(ledger, ev.Hedge(1)) == [ev.Send(2, "quick", (*whole(0), *whole(2)), 2)]
        assert (ledger.hedges, ledger.resends) == (0, 1)

    def test_poison_and_refusals_outlive_labels(self) -> None:
        ledger = ledger_after(ev.TeacherJoined("a", 1), *queued(0), ev.TeacherJoined("b", 1))
        after(ledger, ev.Refused("a", 1, "bad"), answer("b", 2), *queued(1), answer("a", 3))
        out = after(ledger, ev.InvalidateTeacher("b"))
        assert out == [ev.LabelsRevoked(0, whole=True), ev.Poison(0, ("a: bad",))]
        assert after(ledger, ev.InvalidateBatch(0)) == out, "it is refused by the same teachers"
        out = after(ledger, ev.Relabel())
        assert out[0] == ev.LabelsRevoked(0, whole=True), "the new model may take it"

    def test_a_store_is_asked_for_labels_of_a_new_model(self) -> None:
        """Before any teacher: batch 0 is released, 1 in flight, 2 labelled."""
        ledger = ledger_after(ev.TeacherJoined("old", 3), *queued(0, 1, 2), answer("old", 1))
        after(ledger, answer("old", 3), ev.TeacherRevoked("old"), ev.Released(0))
        out = after(ledger, ev.Relabel(stored=True), ev.TeacherJoined("new", 4))
        assert out == [ev.LookUp(1), ev.LookUp(2), ev.LabelsRevoked(2, whole=True)]
        assert (ledger.queued, ledger.unlabelled, set(ledger.withheld)) == (2, 2, {1, 2})
        out = after(ledger, ev.StoreSearched(1, ()), ev.StoreSearched(2, ((3, 5),), 1))
        assert out == [ev.BatchLabelled(1), ev.Send(4, "new", (ev.Span(2, 3, 5),), 1)]
        assert after(ledger, answer("new", 4))[1:] == [ev.BatchLabelled(2)]
        assert after(ledger, ev.StoreSearched(2), ev.StoreSearched(9)) == [], "it is over"


class TestStages:
    def test_batches_are_released_and_taken_in_their_time(self, ledger: Ledger) -> None:
        with pytest.raises(ValueError, match="batch 0 was released, but it is unlabelled"):
            ledger.handle(ev.Released(0))
        after(ledger, answer("slow", 1))
        with pytest.raises(ValueError, match="batch 0 was taken, but it is labelled"):
            ledger.handle(ev.BatchConsumed(0))
        after(ledger, ev.Reset())
        assert after(ledger, ev.Released(0), ev.BatchConsumed(0)) == [], (
            "told before the reset was known"
        )

    def test_what_is_over_stays_over(self, ledger: Ledger) -> None:
        after(ledger, *queued(1), answer("quick", 2))
        assert after(ledger, ev.DeliverUnlabelled(1), ev.DeliverUnlabelled(77)) == [], (
            "it keeps its labels"
        )
        assert ledger.volume_bytes == 110
        after(ledger, ev.TeacherGone("slow"))
        assert after(ledger, answer("slow", 1)) == [ev.Discard(1, "slow")]
        assert after(ledger, ev.Cancelled("slow", 1), ev.Hedge(77), ev.BatchConsumed(77)) == []
        assert not ledger.is_useless("slow")

    def test_ids_must_grow(self, ledger: Ledger) -> None:
        after(ledger, ev.Reset())
        for event in (ev.Queued(0, 100, 10), ev.BatchRestored(0, 110)):
            with pytest.raises(ValueError, match="batch 0 comes after batch 0"):
                ledger.handle(event)


class TestFigures:
    @pytest.fixture
    def ledger(self) -> Ledger:
        """a: two requests of batch 0, the first of them hedged to b, which has batch 1 besides."""
        ledger = ledger_after(ev.TeacherJoined("a", 2, most_rows=5), *queued(0))
        after(ledger, ev.TeacherJoined("b", 3), ev.Hedge(1), *queued(1))
        return ledger

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
        assert list(ledger.requests_at("unknown")) == []

    def test_makers_are_those_of_all_rows_and_of_an_engine_before(self, ledger: Ledger) -> None:
        after(
            ledger, answer("b", 1), answer("a", 2), ev.BatchRestored(2, 110, 10, makers=("y", "x"))
        )
        assert (ledger.makers(0), ledger.makers(2)) == (("a", "b"), ("x", "y"))

    def test_batch_bytes_is_the_heaviest(self, ledger: Ledger) -> None:
        assert ledger.load.batch_bytes == 100
        after(ledger, answer("a", 1), answer("a", 2), ev.Released(0), ev.BatchConsumed(0))
        assert ledger.load.batch_bytes == 110, "with its labels"
        after(ledger, ev.Queued(2, 500, 1), ev.Reset())
        assert ledger.load.batch_bytes == 500

    def test_windows_in_requests_and_in_batches(self) -> None:
        ledger = Ledger()
        assert ledger.load.window_batches == ledger.load.window_room == 0
        after(ledger, ev.TeacherJoined("a", 2), ev.TeacherJoined("b", 3, most_rows=5))
        after(ledger, ev.TeacherJoined("c", 2, most_rows=25), *queued(0))
        assert (ledger.in_flight, ledger.load.window_room) == (2, 5)
        assert ledger.load.window_batches == 9  # 2 x 10, 3 x 5 and 2 x 25 rows, at 10 a batch
        after(ledger, ev.TeacherRevoked("a"), ev.Ejected("c"))
        assert ledger.load.window_batches == 2

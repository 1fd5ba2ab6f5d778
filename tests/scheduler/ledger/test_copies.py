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
        assert after(ledger, answer("slow", 1)) == [ev.Accept(1, whole(0)), ev.Labelled(0)]

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
        assert after(ledger, answer("quick", 2)) == [ev.Accept(2, whole(1)), ev.Labelled(1)]


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
        assert after(ledger, answer("quick", 1)) == [ev.Accept(1, whole(0)), ev.Labelled(0)]
        assert ledger.labelled_by(0) == ((whole(0)[0], "quick"),)
        assert after(ledger, answer("slow", 1)) == [ev.Discard(1, "slow")]
        assert ledger.volume_bytes == 110

    def test_hedge_waits_for_room_and_goes_first(self, ledger: Ledger) -> None:
        after(ledger, *queued(1, 2))
        assert ledger.in_flight_at("quick") == (2,)
        assert after(ledger, ev.Hedge(1)) == []
        assert after(ledger, answer("quick", 2)) == [
            ev.Accept(2, whole(1)),
            ev.Labelled(1),
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
            ev.Labelled(0),
            ev.Labelled(2),
        ]


class TestRefusals:
    @pytest.fixture
    def ledger(self) -> Ledger:
        """Batches 0 and 1 are in flight at a and b, with a window of 1 each; 2 and 3 are queued."""
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 1), ev.TeacherJoined("b", 1), *queued(0, 1, 2, 3))
        return ledger

    def test_poison_after_enough_refusals(self, ledger: Ledger) -> None:
        after(ledger, ev.Refused("a", 1, "shape"), answer("a", 3), answer("b", 2))
        out = after(ledger, ev.Refused("b", 5, "dtype"))
        assert out[0] == ev.Poison(0, ("a: shape", "b: dtype"))
        ledger = Ledger()
        names = ("a", "b", "c", "d")
        after(ledger, *(ev.TeacherJoined(name, 1) for name in names), *queued(0, 1, 2, 3))
        after(ledger, *(answer(name, i) for i, name in enumerate(names, 1)), *queued(4))
        out = after(ledger, *(ev.Refused(name, i, "bad") for i, name in enumerate(names[:3], 5)))
        assert out == [
            ev.Send(6, "b", whole(4), 2),
            ev.Send(7, "c", whole(4), 3),
            ev.Poison(4, ("a: bad", "b: bad", "c: bad")),
        ]
        assert ledger.queued == ledger.unlabelled == 0
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 2), *queued(0, 1))
        assert after(ledger, ev.Refused("a", 2, "bad")) == []
        assert ev.Poison(1, ("a: bad",)) in after(ledger, answer("a", 1))

    def test_refusals_by_teachers_that_label_nothing_do_not_count(self) -> None:
        """Three misconfigured teachers refuse all that they get; one that labels is enough."""
        ledger = Ledger()
        wrong = ("u", "v", "w")
        after(ledger, ev.TeacherJoined("good", 1), *queued(0), answer("good", 1))
        after(ledger, *(ev.TeacherJoined(name, 1) for name in wrong), *queued(*range(1, 13)))
        for _ in range(3):
            for name in wrong:
                assert not ledger.is_useless(name)
                (request,) = ledger.in_flight_at(name)
                out = after(ledger, ev.Refused(name, request, "no such output"))
                assert not any(isinstance(one, ev.Poison) for one in out)
        assert all(map(ledger.is_useless, wrong))
        after(ledger, *map(ev.Ejected, wrong))
        last = [ev.Refused(name, ledger.in_flight_at(name)[0], "no such output") for name in wrong]
        assert after(ledger, *last) == []
        delivered = []
        for _ in range(12):
            (request,) = ledger.in_flight_at("good")
            out = after(ledger, answer("good", request))
            delivered += [one.batch for one in out if isinstance(one, ev.Labelled)]
        assert delivered == list(range(1, 13))

    def test_a_lone_teacher_that_refuses_all_there_is(self) -> None:
        """It is useless at once; when it is back it is asked the same again."""
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 1), *queued(0, 1))
        after(ledger, ev.Refused("a", 1, "bad"))
        assert not ledger.is_useless("a"), "there is something else to ask it"
        assert after(ledger, ev.Refused("a", 2, "bad")) == []
        assert ledger.is_useless("a")
        out = after(ledger, ev.Ejected("a"), ev.TeacherJoined("a", 1))
        assert out == [ev.Send(3, "a", whole(0), 2)]
        assert not ledger.is_useless("a")
        out = after(ledger, ev.Refused("a", 3, "bad"), answer("a", 4))
        assert ev.Poison(0, ("a: bad",)) in out

    def test_a_batch_that_crashes_predictors_counts_as_refused(self) -> None:
        ledger = Ledger()
        names = ("a", "b", "c", "d")
        after(ledger, *(ev.TeacherJoined(name, 1) for name in names), *queued(0, 1, 2, 3))
        after(ledger, *(answer(name, i) for i, name in enumerate(names, 1)), *queued(4))
        out = after(ledger, *(ev.Failed(name, i, "it died") for i, name in enumerate(names[:3], 5)))
        assert out[-1] == ev.Poison(4, ("a: it died", "b: it died", "c: it died"))

    def test_one_crash_at_a_lone_teacher_does_not_condemn_a_batch(self) -> None:
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 1), *queued(0), answer("a", 1), *queued(1))
        for request in (2, 3):
            assert after(ledger, ev.Failed("a", request, "it died")) == []
            assert after(ledger, ev.TeacherJoined("a", 1)) == [
                ev.Send(request + 1, "a", whole(1), request)
            ]
        assert after(ledger, ev.Failed("a", 4, "it died")) == [ev.Poison(1, ("a: it died",))]

    def test_a_lone_teacher_that_crashes_on_its_first_batch_labels_another_before(self) -> None:
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 1), *queued(0, 1))
        assert after(ledger, ev.Failed("a", 1, "it died")) == []
        assert after(ledger, ev.Resumed("a")) == [ev.Send(2, "a", whole(1), 1)]
        assert after(ledger, answer("a", 2)) == [
            ev.Accept(2, whole(1)),
            ev.Labelled(1),
            ev.Send(3, "a", whole(0), 2),
        ]
        after(ledger, ev.Failed("a", 3, "it died"), ev.Resumed("a"))
        out = after(ledger, ev.Failed("a", 4, "it died"))
        assert out == [ev.Poison(0, ("a: it died",))]

    def test_a_lone_teacher_that_all_batches_crash_gets_them_by_turns(self) -> None:
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 1), *queued(0, 1, 2))
        batches = []
        for request in range(1, 7):
            after(ledger, ev.Failed("a", request, "it died"))
            (send,) = after(ledger, ev.Resumed("a"))
            assert isinstance(send, ev.Send)
            batches.append(send.spans[0].batch)
        assert batches == [1, 2, 0, 1, 2, 0]

    def test_a_crash_counts_once_however_many_gaps_the_batch_has(self) -> None:
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 1), *queued(0), answer("a", 1))
        gaps = ((0, 1), (2, 3), (4, 5))
        (send,) = after(ledger, ev.Queued(1, 10, 100, missing=gaps))
        assert isinstance(send, ev.Send)
        assert len(send.spans) == 3
        assert after(ledger, ev.Failed("a", 2, "it died")) == []

    def test_a_teacher_that_labelled_before_it_was_lost_is_believed_when_it_refuses(self) -> None:
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 1), *queued(0), answer("a", 1), ev.TeacherLost("a"))
        after(ledger, ev.TeacherJoined("a", 1, has_labelled=True), *queued(1))
        assert after(ledger, ev.Refused("a", 2, "bad")) == [ev.Poison(1, ("a: bad",))]

    def test_a_crash_elsewhere_is_tried_by_the_others_first(self) -> None:
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 1), ev.TeacherJoined("b", 1), *queued(0, 1))
        after(ledger, answer("a", 1), *queued(2), ev.Failed("a", 3, "it died"))
        assert after(ledger, ev.Resumed("a")) == [], "b is asked once it has room"
        assert ev.Send(4, "b", whole(2), 2) in after(ledger, answer("b", 2))

    def test_awaited_teachers(self) -> None:
        ledger = Ledger()
        after(ledger, ev.Awaited(2), ev.TeacherJoined("a", 1), ev.Awaited(1), *queued(0, 1))
        assert after(ledger, ev.Refused("a", 1, "bad")) == [ev.Send(2, "a", whole(1), 1)]
        assert ledger.refusers == {"a"}
        after(ledger, answer("a", 2))
        assert after(ledger, ev.TeacherJoined("b", 1), ev.Awaited(0)) == [
            ev.Send(3, "b", whole(0), 2)
        ]
        assert after(ledger, *queued(2), answer("a", 4)) == [
            ev.Send(4, "a", whole(2), 1),
            ev.Accept(4, whole(2)),
            ev.Labelled(2),
        ]
        out = after(ledger, ev.Refused("b", 3, "bad"))
        assert out[0] == ev.Poison(0, ("a: bad", "b: bad")), "of those that label, all"
        assert ledger.refusers == frozenset()
        ledger = Ledger()
        after(ledger, ev.Awaited(1), ev.TeacherJoined("a", 1), *queued(0), answer("a", 1))
        after(ledger, *queued(1))
        assert after(ledger, ev.Refused("a", 2, "bad")) == []
        after(ledger, ev.Reset(), *queued(2))
        assert after(ledger, ev.Refused("a", 3, "bad")) == []
        assert after(ledger, ev.Awaited(0)) == [ev.Poison(2, ("a: bad",))]

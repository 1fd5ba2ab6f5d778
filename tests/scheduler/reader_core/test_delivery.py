"""In which order, how far ahead, and without which labels batches go to the training loop."""

from __future__ import annotations

import math

import pytest

from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger import events as ev
from edl.scheduler.no_teacher import Ensemble, Mixture, Policy
from edl.scheduler.reader_core import instructions as do
from edl.scheduler.reader_core.delivery import Delivery, look_ahead
from edl.scheduler.reader_core.events import LoopWaiting

ALL_OF_AB = Mixture({"a": 0.25, "b": 0.75}, 1.0)


class Stream:
    """A delivery of services of one letter each; the test says what their ledgers would."""

    def __init__(self, *batches: int, services: str = "s", ordered: bool = True) -> None:
        self.ledgers = {name: Ledger() for name in services}
        ensemble = Ensemble({"a": 1.0, "b": 3.0}, "tolerate", 5.0) if services == "ab" else None
        policy = Policy("hard_only", 10.0)
        self.delivery = Delivery(self.ledgers, ordered=ordered, policy=policy, ensemble=ensemble)
        for batch in batches:
            self.delivery.queue(batch)

    def labelled(self, *batches: int, by: str = "s") -> list[do.StreamInstruction]:
        out = list[do.StreamInstruction]()
        for batch in batches:
            out += self.delivery.handle(by, ev.BatchLabelled(batch))
        return out

    def offered(self, *batches: int, by: str = "s") -> list[int]:
        """These are labelled; which are offered because of it."""
        return [
            one.batch for one in self.labelled(*batches, by=by) if isinstance(one, do.OfferBatch)
        ]

    def forgone(self, batch: int, by: str) -> list[do.StreamInstruction]:
        return self.delivery.handle(by, ev.GoesUnlabelled(batch))

    def void(self, batch: int, by: str = "s") -> list[do.StreamInstruction]:
        return self.delivery.handle(by, ev.LabelsRevoked(batch, whole=True))

    def poison(self, batch: int, by: str) -> list[do.StreamInstruction]:
        return self.delivery.handle(by, ev.Poison(batch, ("no",)))

    def released(self) -> list[int]:
        """Which are released now; the ledgers hear of each."""
        out = self.delivery.release()
        batches = [batch for one in out if isinstance(one, do.Release) for batch in one.batches]
        told = [
            do.ForwardEvent(name, ev.Released(batch)) for batch in batches for name in self.ledgers
        ]
        assert out == ([*told, do.Release(tuple(batches))] if batches else [])
        return batches


@pytest.mark.parametrize(
    ("batch_s", "ahead"),
    [
        *((None, 2), (0.0, 2), (0.5, 2), (0.05, 2), (0.02, 5), (1e-6, 64), (1e-320, 64)),
        (math.nextafter(0.05, 0.0), 2),  # a rounding error releases no batch more
    ],
)
def test_a_tenth_of_a_second_of_work_is_at_hand(batch_s: float | None, ahead: int) -> None:
    assert look_ahead(batch_s) == ahead


def test_in_order_a_batch_waits_for_those_before_it() -> None:
    stream = Stream(0, 1, 2)
    assert stream.offered(1) == []
    assert stream.released() == []
    assert stream.offered(0) == [0, 1]
    assert stream.released() == [0, 1]
    assert stream.offered(2) == [2]
    assert stream.offered(2) == []


def test_without_order_they_go_as_they_are_completed() -> None:
    stream = Stream(0, 1, 2, ordered=False)
    assert stream.offered(2) == [2]
    assert stream.offered(0) == [0]
    assert stream.released() == [2, 0]


def test_more_is_released_once_half_is_taken() -> None:
    stream = Stream(*range(10))
    delivery = stream.delivery
    stream.labelled(*range(10))
    assert stream.released() == [0, 1]
    delivery.taken(0, None)
    delivery.taken(1, 0.03)
    assert stream.released() == [2, 3, 4, 5]
    delivery.taken(2, 0.0)
    assert stream.released() == []
    delivery.taken(3, 0.04)
    delivery.taken(4, None)
    assert stream.released() == [6, 7], "3 are at hand where a step takes 0.035 s"
    delivery.taken(5, 100.0)
    assert stream.released() == []
    delivery.taken(6, 0.04)
    assert stream.released() == [8]


def test_a_withdrawn_batch_holds_up_those_behind_it() -> None:
    stream = Stream(0, 1, 2, 3)
    stream.labelled(0, 1, 2)
    assert stream.void(0) == [do.Withdraw(0)]
    assert stream.released() == []
    assert stream.offered(3) == [], "0 is to be offered first"
    assert stream.void(3) == [], "nobody was told of it"
    assert stream.offered(0) == [0]
    assert stream.released() == [0, 1]
    assert stream.void(1) == [], "it is released"


def test_a_batch_is_complete_with_the_last_service() -> None:
    stream = Stream(0, services="ab")
    assert stream.labelled(0, by="a") == []
    assert stream.labelled(0, by="b") == [do.OfferBatch(0, ALL_OF_AB)]
    assert stream.void(0, by="a") == [do.Withdraw(0)], "the labels of the other service stay"
    assert stream.labelled(0, by="a") == [do.OfferBatch(0, ALL_OF_AB)]


def test_poison_of_one_service_is_poison_and_taken_back_for_all() -> None:
    dropped, forgo = do.DropBatch(0), do.ForwardEvent("b", ev.DeliverUnlabelled(0))
    stream = Stream(0, services="ab")
    assert stream.poison(0, by="a") == [dropped, do.OfferPoison(0, ("no",)), forgo]
    assert stream.labelled(0, by="b") == [dropped], "too late"
    assert stream.poison(0, by="b") == []
    assert stream.void(0, by="a") == [do.Withdraw(0), do.ForwardEvent("b", ev.InvalidateBatch(0))]
    assert stream.offered(0, by="a") == [], "also where `b` has not begun with it"
    assert stream.offered(0, by="b") == [0]


def test_a_service_that_labels_a_poison_batch_after_all_takes_part_in_it() -> None:
    stream = Stream(0, services="ab")
    stream.forgone(0, by="b")
    stream.poison(0, by="a")
    stream.void(0, by="b")
    stream.void(0, by="a")
    stream.labelled(0, by="a")
    assert stream.labelled(0, by="b") == [do.OfferBatch(0, ALL_OF_AB)]


def test_poison_behind_another_batch_is_offered_in_its_turn() -> None:
    stream = Stream(0, 1, services="ab")
    assert do.OfferPoison(1, ("no",)) not in stream.poison(1, by="a")
    assert stream.void(1, by="a") == [do.ForwardEvent("b", ev.InvalidateBatch(1))], (
        "the trainer has not heard of it"
    )
    stream.poison(1, by="b")
    stream.labelled(0, by="a")
    assert do.OfferPoison(1, ("no",)) in stream.labelled(0, by="b")
    assert stream.released() == [0, 1]


def test_batches_of_an_engine_before_are_labelled_anew_by_all() -> None:
    stream = Stream(services="ab")
    delivery = stream.delivery
    tell = [do.ForwardEvent(name, ev.Released(0)) for name in "ab"]
    assert delivery.restore(0, released=True) == tell
    assert delivery.restore(1, released=False) == []
    delivery.queue(2)
    assert stream.void(0, by="a") == []
    assert stream.void(1, by="a") == [do.Withdraw(1), do.ForwardEvent("b", ev.InvalidateBatch(1))]
    assert stream.void(1, by="b") == []
    stream.labelled(2, by="a")
    stream.labelled(2, by="b")
    assert stream.offered(1, by="a") == []
    assert stream.offered(1, by="b") == [1, 2]
    assert stream.void(1, by="a") == [do.Withdraw(1)], "this engine knows whose labels it has"
    assert stream.offered(1, by="a") == [1]
    delivery.taken(0, None)
    assert stream.released() == [1, 2]


def test_after_the_epoch_was_left_nothing_is_known_of_its_batches() -> None:
    stream = Stream(0, 1, 2)
    stream.labelled(0)
    assert stream.released() == [0]
    stream.poison(1, by="s")
    stream.delivery.reset()
    assert stream.labelled(1, 2) == []
    stream.delivery.queue(3)
    assert stream.offered(3) == [3]


class TestNoTeacher:
    """Nobody has a teacher at first."""

    @pytest.fixture
    def stream(self) -> Stream:
        stream = Stream(0, 1, 2, services="ab")
        for batch in (0, 1, 2):
            for ledger in stream.ledgers.values():
                ledger.handle(ev.Queued(batch, 10, 1))
        return stream

    def test_a_service_that_is_missing_is_tolerated(self, stream: Stream) -> None:
        """Batch 0 has labels of `a`, batch 1 of both, batch 2 of none."""
        stream.labelled(0, 1, by="a")
        stream.labelled(1, by="b")
        assert stream.delivery.tick(100.0) == []
        assert stream.delivery.tick(104.9) == []
        assert stream.delivery.tick(105.0) == [do.ForwardEvent("b", ev.DeliverUnlabelled(0))]
        part = Mixture({"a": 1.0}, 0.25)
        assert stream.forgone(0, by="b") == [do.OfferBatch(0, part), do.OfferBatch(1, ALL_OF_AB)]
        stream.delivery.release()
        delivery = stream.delivery
        assert (delivery.unlabelled_by_service, delivery.partial, delivery.unlabelled) == (
            {"b": 1},
            1,
            0,
        )

    def test_labels_that_come_anew_are_mixed_again(self, stream: Stream) -> None:
        stream.labelled(0, by="a")
        stream.forgone(0, by="b")
        assert stream.void(0, by="b") == [do.Withdraw(0)]
        assert stream.labelled(0, by="b") == [do.OfferBatch(0, ALL_OF_AB)]
        stream.delivery.release()
        delivery = stream.delivery
        assert (delivery.unlabelled_by_service.total(), delivery.partial) == (0, 0)

    def test_a_service_is_missing_after_a_while_without_a_teacher(self, stream: Stream) -> None:
        stream.labelled(0, by="a")
        stream.delivery.tick(100.0)
        stream.ledgers["b"].handle(ev.TeacherJoined("t", 1))
        assert stream.delivery.tick(104.0) == []
        stream.ledgers["b"].handle(ev.TeacherGone("t"))
        assert stream.delivery.tick(104.5) == []
        assert stream.delivery.tick(109.4) == []
        assert stream.delivery.tick(109.5) == [do.ForwardEvent("b", ev.DeliverUnlabelled(0))]

    @pytest.mark.parametrize("withheld", [False, True])
    def test_a_store_is_asked_first(self, withheld: bool, stream: Stream) -> None:
        """Before the ledger has the batch, or after it was withheld."""
        stream.delivery.queue(3)
        stream.labelled(3, by="a")
        if withheld:
            stream.ledgers["b"].handle(ev.Queued(3, 10, 1))
            stream.ledgers["b"].handle(ev.Relabel(stored=True))
        stream.delivery.tick(0.0)
        assert stream.delivery.tick(100.0) == []
        if withheld:
            stream.ledgers["b"].handle(ev.StoreSearched(3))
        else:
            stream.ledgers["b"].handle(ev.Queued(3, 10, 1))
        assert stream.delivery.tick(101.0) == [do.ForwardEvent("b", ev.DeliverUnlabelled(3))]

    def test_the_batch_that_is_waited_for_goes_without_labels(self, stream: Stream) -> None:
        delivery = stream.delivery
        delivery.tick(0.0)
        assert delivery.tick(99.0) == [], "the loop does not wait"
        delivery.wait()
        assert delivery.tick(100.0) == []
        news, *told = delivery.tick(110.0)
        assert news == do.LogMessage(
            "warning", "batch 0 is delivered without soft labels: no teacher of a, b is usable"
        )
        assert told == [
            *(do.ForwardEvent(name, ev.DeliverUnlabelled(0)) for name in "ab"),
            *(do.ForwardEvent(name, LoopWaiting(False)) for name in "ab"),
        ]
        assert delivery.tick(111.0) == [], "it does not wait any more"
        stream.forgone(0, by="a")
        assert stream.forgone(0, by="b") == [do.OfferBatch(0, None)]
        delivery.release()
        assert (delivery.partial, delivery.unlabelled) == (0, 1)
        delivery.taken(0, None)
        delivery.wait()
        assert do.ForwardEvent("a", ev.DeliverUnlabelled(1)) in delivery.tick(112.0), (
            "at once, as for the first"
        )

    def test_a_batch_waits_for_labels_while_the_loop_may_take_another(self, stream: Stream) -> None:
        delivery = stream.delivery
        delivery.wait()
        delivery.tick(0.0)
        assert len(delivery.tick(10.0)) == 5, "batch 0 goes"
        stream.forgone(0, by="a")
        stream.forgone(0, by="b")
        delivery.release()
        delivery.taken(0, None)
        stream.labelled(1, by="a")
        stream.labelled(1, by="b")  # a store has its labels
        delivery.wait()
        told = [do.ForwardEvent(name, ev.Released(1)) for name in "ab"]
        assert delivery.tick(11.0) == [*told, do.Release((1,))]
        assert delivery.tick(12.0) == [], "batch 2 is not needed yet"
        delivery.taken(1, None)
        delivery.wait()
        assert do.ForwardEvent("a", ev.DeliverUnlabelled(2)) in delivery.tick(13.0)

    def test_a_batch_waits_for_labels_if_the_one_before_it_has_some(self, stream: Stream) -> None:
        delivery = stream.delivery
        stream.ledgers["b"].handle(ev.TeacherJoined("t", 1))
        delivery.wait()
        delivery.tick(0.0)
        stream.ledgers["b"].handle(ev.TeacherGone("t"))
        stream.labelled(0, by="a")
        delivery.tick(10.0)
        delivery.tick(14.0)
        assert delivery.tick(20.0) == [do.ForwardEvent("b", ev.DeliverUnlabelled(0))]

    def test_only_answers_of_a_service_without_teachers_end_a_wait(self) -> None:
        ledgers = {name: Ledger() for name in "ab"}
        delivery = Delivery(
            ledgers, policy=Policy("fail", 5.0), ensemble=Ensemble({"a": 1.0, "b": 1.0})
        )
        delivery.queue(0)
        for ledger in ledgers.values():
            ledger.handle(ev.Queued(0, 10, 1))
        ledgers["b"].handle(ev.TeacherJoined("t", 1))
        delivery.wait()
        assert delivery.tick(0.0) == []
        ledgers["b"].handle(ev.Answered("t", 1, 8, 0.1))
        assert ledgers["b"].accepted == 1
        assert delivery.tick(4.0) == []
        ledgers["b"].handle(ev.TeacherGone("t"))
        assert delivery.tick(4.5) == []
        assert delivery.tick(5.0) == [do.GiveUp()], "`a` has been without for so long"

    def test_a_teacher_that_comes_is_waited_for(self, stream: Stream) -> None:
        stream.delivery.wait()
        stream.delivery.tick(0.0)
        stream.ledgers["b"].handle(ev.TeacherJoined("t", 1))
        assert stream.delivery.tick(100.0) == []


def test_it_gives_up_when_the_user_does() -> None:
    ledger = Ledger()
    delivery = Delivery({"s": ledger}, policy=Policy("fail", 5.0))
    delivery.queue(0)
    ledger.handle(ev.Queued(0, 10, 1))
    delivery.wait()
    assert delivery.tick(0.0) == []
    assert delivery.tick(5.0) == [do.GiveUp()]
    delivery.taken(0, None)
    assert delivery.tick(6.0) == []

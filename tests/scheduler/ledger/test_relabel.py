"""Labels that are not used: of ejected teachers, of invalidated ones, of an old model."""

from __future__ import annotations

import pytest

from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger import events as ev

from .driver import after, answer, queued, whole


@pytest.fixture
def ledger() -> Ledger:
    """Of the liar's: 0 released, 2 labelled, 3 in flight; 1 is in flight at the honest one."""
    ledger = Ledger()
    after(ledger, ev.TeacherJoined("liar", 1), *queued(0), answer("liar", 1))
    after(
        ledger,
        ev.Released(0),
        ev.TeacherJoined("honest", 1, seconds_per_row=0.001),
        *queued(1, 2, 3),
    )
    assert after(ledger, answer("liar", 3))[0] == ev.Accept(3, whole(2))
    assert (ledger.in_flight_at("honest"), ledger.in_flight_at("liar")) == ((2,), (4,))
    return ledger


class TestInvalidateLabels:
    def test_labels_are_void_that_are_not_released(self, ledger: Ledger) -> None:
        assert after(ledger, ev.Disbelieve("liar")) == [ev.Unlabelled(2, whole=True)]
        assert (ledger.queued, ledger.unlabelled, ledger.volume_bytes) == (2, 3, 110)
        assert ledger.on_trial == ("liar",)
        assert after(ledger, answer("liar", 4)) == [ev.Discard(4, "liar")]
        out = after(ledger, answer("honest", 2), answer("honest", 5), answer("honest", 6))
        assert out == [
            ev.Accept(2, whole(1)),
            ev.Labelled(1),
            ev.Send(5, "honest", whole(2), 2),
            ev.Accept(5, whole(2)),
            ev.Labelled(2),
            ev.Send(6, "honest", whole(3), 2),
            ev.Accept(6, whole(3)),
            ev.Labelled(3),
        ]

    def test_only_its_own_rows_are_labelled_anew(self) -> None:
        ledger = Ledger()
        after(ledger, ev.Queued(0, 100, 10, ((2, 10),)))
        after(ledger, ev.TeacherJoined("liar", 1, 4), ev.TeacherJoined("honest", 1, 4))
        assert after(ledger, answer("honest", 2), answer("liar", 1))[-1] == ev.Labelled(0)
        out = after(ledger, ev.Disbelieve("liar"))
        assert out == [ev.Unlabelled(0, whole=False), ev.Send(3, "honest", (ev.Span(0, 2, 6),), 2)]
        assert after(ledger, answer("honest", 3))[-1] == ev.Labelled(0)

    def test_single_batch_is_doubted_as_a_whole(self) -> None:
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 1), *queued(0, 1, 2), answer("a", 1), answer("a", 2))
        after(ledger, ev.Released(1))
        out = after(ledger, ev.Doubt(0), ev.Doubt(0), ev.Doubt(1), ev.Doubt(2), ev.Doubt(7))
        assert out == [ev.Unlabelled(0, whole=True)]
        assert after(ledger, answer("a", 3))[-1] == ev.Send(4, "a", whole(0), 2)

    def test_poison_and_refusals_outlive_labels(self) -> None:
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 1), *queued(0), ev.TeacherJoined("b", 1))
        after(ledger, ev.Refused("a", 1, "bad"), answer("b", 2), *queued(1), answer("a", 3))
        out = after(ledger, ev.Disbelieve("b"))
        assert out == [ev.Unlabelled(0, whole=True), ev.Poison(0, ("a: bad",))]
        assert after(ledger, ev.Disbelieve("b")) == []
        assert after(ledger, ev.Doubt(0)) == out, "it is refused by the same teachers"
        out = after(ledger, ev.Relabel())
        assert out[0] == ev.Unlabelled(0, whole=True), "the new model may take it"
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 1), *queued(0, 1), answer("a", 1))
        after(ledger, ev.Refused("a", 2, "bad"), ev.Released(1))
        assert after(ledger, ev.Relabel()) == [
            ev.Unlabelled(0, whole=True),
            ev.Send(3, "a", whole(0), 1),
        ], "poison that is released is raised"

    def test_labels_of_a_lost_teacher(self, ledger: Ledger) -> None:
        assert after(ledger, ev.TeacherLost("liar"), ev.Disbelieve("liar")) == [
            ev.Unlabelled(2, whole=True)
        ]
        assert ledger.queued == 2


class TestHeld:
    """Batches whose labels an engine before this one was given, and who made them."""

    def test_held_batches_are_labelled_anew_as_a_whole(self) -> None:
        ledger = Ledger()
        after(
            ledger,
            ev.Held(0, 110, 10, makers=("honest", "liar")),
            ev.Held(1, 110, 10, 0, ("honest",)),
            ev.Held(2, 110, 10, 0, ("liar",)),
            ev.Released(2),
        )
        assert ledger.makers(0) == ("honest", "liar")
        assert after(ledger, ev.Disbelieve("liar"), ev.Disbelieve("honest")) == [
            ev.Unlabelled(0, whole=True),
            ev.Unlabelled(1, whole=True),
        ]
        assert after(ledger, ev.TeacherJoined("b", 1)) == [ev.Send(1, "b", whole(0), 2)]
        assert after(ledger, answer("b", 1))[:2] == [ev.Accept(1, whole(0)), ev.Labelled(0)]
        assert ledger.makers(0) == ("b",)
        assert (ledger.labelled, ledger.volume_bytes) == (2, 230)
        assert after(Ledger(), ev.Held(0, 110), ev.Disbelieve("liar")) == []


class OldModel:
    @pytest.fixture
    def ledger(self) -> Ledger:
        """Batches 0 to 4: released, in flight, labelled, in flight, in flight."""
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("old", 4), *queued(0, 1, 2, 3, 4))
        after(ledger, answer("old", 1), answer("old", 3), ev.TeacherRevoked("old"), ev.Released(0))
        assert ledger.in_flight_at("old") == (2, 4, 5)
        assert ledger.volume_bytes == 220
        return ledger


class TestStored(OldModel):
    """Where a store may have labels of the new model, it is asked before any teacher is."""

    def test_nothing_is_sent_before_the_lookup(self, ledger: Ledger) -> None:
        lookups = [ev.LookUp(batch) for batch in (1, 2, 3, 4)]
        out = after(ledger, ev.Relabel(stored=True))
        assert sorted(out, key=repr) == [*lookups, ev.Unlabelled(2, whole=True)]
        assert after(ledger, ev.TeacherJoined("new", 4)) == []
        assert (ledger.queued, ledger.unlabelled) == (4, 4)
        assert after(ledger, ev.Found(1)) == [ev.Send(6, "new", whole(1), 1)]
        assert set(ledger.withheld) == {2, 3, 4}

    def test_only_missing_rows_are_sent(self, ledger: Ledger) -> None:
        after(ledger, ev.Relabel(stored=True), ev.TeacherJoined("new", 4))
        out = after(ledger, ev.Found(1, ()), ev.Found(2, ((3, 5),), 1))
        assert out == [ev.Labelled(1), ev.Send(6, "new", (ev.Span(2, 3, 5),), 1)]
        assert after(ledger, answer("new", 6))[1:] == [ev.Labelled(2)]
        assert after(ledger, ev.Found(2), ev.Found(9)) == [], "it is over"


class TestRelabel(OldModel):
    def test_batches_are_labelled_anew_in_order(self, ledger: Ledger) -> None:
        assert after(ledger, ev.Relabel()) == [ev.Unlabelled(2, whole=True)]
        assert (ledger.queued, ledger.unlabelled, ledger.labelled) == (4, 4, 1)
        assert ledger.volume_bytes == 110, "only what was released is held with its labels"
        sent = after(ledger, ev.TeacherJoined("new", 4))
        assert sent == [ev.Send(5 + batch, "new", whole(batch), 1) for batch in (1, 2, 3, 4)]
        after(ledger, *(answer("new", request) for request in (7, 8, 9)))
        out = after(ledger, answer("new", 6))
        assert out == [ev.Accept(6, whole(1)), ev.Labelled(1)]
        assert ledger.volume_bytes == 5 * 110

    def test_teacher_may_get_the_batch_that_it_works_on(self, ledger: Ledger) -> None:
        """The request tells its two answers apart."""
        out = after(ledger, ev.Relabel(), ev.TeacherJoined("old", 4))
        assert out == [ev.Unlabelled(2, whole=True), ev.Send(6, "old", whole(1), 1)]
        assert after(ledger, answer("old", 2)) == [
            ev.Discard(2, "old"),
            ev.Send(7, "old", whole(2), 1),
        ]
        assert after(ledger, answer("old", 6))[:2] == [ev.Accept(6, whole(1)), ev.Labelled(1)]

"""Labels made anew: of a model that was exchanged, and of a teacher that lied to another engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.engine.engine import Engine
from edl.distill_reader.engine.member import Member
from edl.distill_reader.engine.outcomes import Done, Job, Peer, Ready
from edl.distill_reader.engine.roster import Assigned
from edl.distill_reader.engine.shelf_keeper import Identity
from edl.distill_reader.engine.stored import Stocked
from edl.distill_reader.engine.teacher_link import TeacherLink
from edl.distill_reader.engine.words import waiting_for
from edl.distill_reader.ensembles import Mixing
from edl.distill_reader.store import LabelStore
from edl.distill_reader.store.rows import Content
from edl.proto.arena import Arena, Array, ArrayRef
from edl.proto.channel import Channel
from edl.proto.lent_arena import LentArena
from edl.scheduler.ledger import events as ev
from edl.scheduler.switching import Advice

ROWS = 4
X = np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3)


class Bench:
    """An engine whose thread does not run, and links that send nothing; it is told what happens."""

    def __init__(self, config: ReaderConfig) -> None:
        self._patch = mock.patch.object(TeacherLink, "_thread")
        self._patch.start()
        self._channel, fd = Channel.pair()
        self.trainer = Channel.attach(fd)
        self.ring, self.arena = LentArena.create(), Arena.create()
        self.engine = Engine(config, self._channel, self.ring, self.arena)

    def close(self) -> None:
        for member in self.engine.members:
            member.close()
        for closable in (self._channel, self.trainer, self.ring, self.arena):
            closable.close()
        self._patch.stop()

    @property
    def member(self) -> Member:
        return self.engine.members[0]

    def assign(self, member: Member, *names: str, content_id: str = "") -> None:
        peers = tuple(Peer(name, "127.0.0.1:9", "s", 1, content_id) for name in names)
        advice = Advice(content_id, "", 1) if content_id else Advice()
        member._on_assigned(Assigned(peers, advice=advice))
        for name in names:
            member._on_outcome(member.pool.link(name), Ready(("x",)))

    def say(self, kind: str, **fields: Any) -> None:
        self.engine._on_message({"kind": kind, **fields})

    def batch(self, number: int, kind: str = "batch", **fields: Any) -> None:
        (ref,) = self.ring.put([X]).arrays
        self.say(
            kind,
            number=number,
            nbytes=X.nbytes,
            samples=ROWS,
            source_s=0.0,
            fields=[[0, ref.to_json()]],
            generation=self.ring.generation(ref),
            **fields,
        )

    def answer(self, member: Member, name: str, width: int = 2) -> None:
        """Answer all that a teacher has, and gets for that, with rows of this width."""
        while (flight := next(member.ledger.requests_at(name), None)) is not None:
            rows = np.concatenate([labels(s.batch, width)[s.start : s.stop] for s in flight.spans])
            job = Job(flight.request, flight.spans, {}, (), flight.rows)
            done = Done(job, {"soft": rows}, 0.001, False, 0.01)
            member._on_outcome(member.pool.link(name), done)

    def told(self) -> list[dict[str, Any]]:
        return list(self.trainer.received() or ())

    def labelled(self) -> dict[int, Array]:
        """The batches that were handed over since, and their labels."""
        told = [message for message in self.told() if message["kind"] == "labelled"]
        self.offsets = [message["offset"] for message in told]
        return {
            message["number"]: self.arena.get(ArrayRef.from_json(message["labels"][0][1]))
            for message in told
        }

    def take(self, number: int) -> None:
        """The training loop takes a batch, and has no use for what was handed over last."""
        self.say("taken", number=number, samples=ROWS, step_s=0.0, free=self.offsets)


def labels(number: int, width: int) -> Array:
    return (np.arange(ROWS * width).reshape(ROWS, width) + 100 * number).astype(np.float32)


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Of one service, with requests of one row."""
    with closing(Bench(ReaderConfig("s", teachers=("h:1",), teacher_batch_size=1))) as made:
        yield made


def test_a_batch_that_comes_back_from_the_old_model_gets_labels_of_another_shape(
    bench: Bench,
) -> None:
    """It is recalled, the model is exchanged, and then it is handed back: in pieces, of new rows.

    Rows of one shape cannot stand beside those of the other.
    """
    bench.assign(bench.member, "liar")
    bench.batch(0)
    bench.answer(bench.member, "liar")
    assert bench.labelled()[0].shape == (ROWS, 2)
    bench.member.carrying.handle(ev.Disbelieve("liar"))
    bench.assign(bench.member, "new", content_id="next")
    bench.member.carrying.handle(ev.Relabel())
    bench.say("recalled", number=0)
    bench.member.carrying.handle(ev.Readmitted("new"))
    bench.answer(bench.member, "new", width=3)
    np.testing.assert_array_equal(bench.labelled()[0], labels(0, 3))
    bench.take(0)
    assert bench.arena.used_bytes == 0


class TestAfterAnEnginesDeath:
    def test_what_a_liar_made_for_the_engine_before_is_recalled(self, bench: Bench) -> None:
        bench.batch(0, "held", labels_nbytes=32, makers={"s": ["liar", "honest"]})
        bench.batch(1, "held", labels_nbytes=32, makers={"s": ["honest"]})
        bench.batch(2, "held", labels_nbytes=0, makers={})
        bench.assign(bench.member, "honest")
        bench.member.carrying.handle(ev.Disbelieve("liar"))
        recalls = [m["number"] for m in bench.told() if m["kind"] == "recall"]
        assert recalls == [0]
        bench.say("recalled", number=0)
        bench.answer(bench.member, "honest")
        np.testing.assert_array_equal(bench.labelled()[0], labels(0, 2))

    def test_who_made_them_is_told_with_the_labels(self, bench: Bench) -> None:
        bench.assign(bench.member, "b")
        bench.batch(0)
        bench.answer(bench.member, "b")
        (message,) = [m for m in bench.told() if m["kind"] == "labelled"]
        assert message["makers"] == {"s": ["b"]}

    def test_of_two_services_both_label_it_anew(self) -> None:
        """Their labels were mixed by an engine that is gone: they cannot be told apart."""
        mixing = Mixing((("s", 1.0), ("t", 1.0)), (("s", ("h:1",)), ("t", ("h:2",))))
        config = ReaderConfig("s+t", teachers=("h:1", "h:2"), mixing=mixing)
        with closing(Bench(config)) as bench:
            makers = {"s": ["liar"], "t": ["b"]}
            bench.batch(0, "held", labels_nbytes=32, makers=makers)
            s, t = bench.engine.members
            s.carrying.handle(ev.Disbelieve("liar"))
            assert [m["number"] for m in bench.told() if m["kind"] == "recall"] == [0]
            bench.say("recalled", number=0)
            bench.assign(s, "a")
            bench.assign(t, "b")
            bench.answer(s, "a")
            assert bench.labelled() == {}
            bench.answer(t, "b")
            assert bench.labelled()[0].shape == (ROWS, 2)
            bench.take(0)
            assert bench.arena.used_bytes == 0


class TestStore:
    """After the model is exchanged a store is asked before any teacher is."""

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[Bench]:
        """Batch 0 delivered, batches 1 and 2 at the teacher of the old content."""
        store = LabelStore(tmp_path / "s", 1 << 24)
        with closing(Bench(ReaderConfig("s", teachers=("h:1",), store=store))) as bench:
            assert bench.member.shelf is not None
            bench.assign(bench.member, "a", content_id="old")
            bench.member.shelf.opened(None)
            for number in range(3):
                bench.batch(number)
                bench.member.look(float(number))
                self.store_has(bench, number, "old", 0)
            (flight, *_) = bench.member.ledger.requests_at("a")
            job = Job(flight.request, flight.spans, {}, (), flight.rows)
            done = Done(job, {"soft": labels(0, 2)}, 0.001, False, 0.01)
            bench.member._on_outcome(bench.member.pool.link("a"), done)
            assert list(bench.labelled()) == [0]
            yield bench

    def store_has(self, bench: Bench, number: int, content_id: str, rows: int) -> None:
        """It has been asked for a batch, and has its first rows."""
        found = Stocked(tuple(range(rows)), {"soft": labels(number, 2)[:rows]})
        keys = [bytes([number, row]) for row in range(ROWS)]
        assert bench.member.shelf is not None
        bench.member.shelf.looked(Identity(number, Content(content_id), keys), found)

    def exchange(self, bench: Bench) -> None:
        bench.assign(bench.member, "b", content_id="new")
        bench.member.look(5.0)

    def test_only_rows_that_it_lacks_are_sent(self, bench: Bench) -> None:
        self.exchange(bench)
        assert bench.member.ledger.in_flight_at("b") == ()
        self.store_has(bench, 1, "new", ROWS)
        self.store_has(bench, 2, "new", 3)
        np.testing.assert_array_equal(bench.labelled()[1], labels(1, 2))
        (flight,) = bench.member.ledger.requests_at("b")
        assert flight.spans == (ev.Span(2, 3, ROWS),)
        bench.answer(bench.member, "b")
        np.testing.assert_array_equal(bench.labelled()[2], labels(2, 2))

    def test_what_it_had_of_the_old_model_comes_too_late(self, bench: Bench) -> None:
        bench.batch(3)
        bench.batch(4)
        bench.member.look(4.0)
        self.store_has(bench, 4, "old", ROWS)  # before batch 3, which keeps it waiting
        self.exchange(bench)
        for number in (1, 2, 3):
            self.store_has(bench, number, "old", ROWS)
            bench.member.look(6.0 + number)
        assert bench.labelled() == {}
        assert bench.member.is_on_shelf(1)
        for number in (1, 2, 3):
            self.store_has(bench, number, "new", 2)
        bench.answer(bench.member, "b")
        assert [*bench.labelled()] == [1, 2, 3]
        assert bench.member.is_on_shelf(4), "what was found of it before was of the old model"
        self.store_has(bench, 4, "new", 2)
        bench.answer(bench.member, "b")
        assert [*bench.labelled()] == [4]

    def test_it_is_waited_for_in_words(self, bench: Bench) -> None:
        self.exchange(bench)
        bench.batch(3)
        bench.say("waiting", at=0.0)
        bench.member.look(6.0)
        assert "3 batches wait for the label store" in waiting_for(bench.member)

    def test_one_that_is_handed_back_afterwards_is_looked_up_too(self, bench: Bench) -> None:
        bench.member.carrying.handle(ev.Disbelieve("a"))
        self.exchange(bench)
        bench.say("recalled", number=0)
        bench.member.look(6.0)
        for number in range(3):
            self.store_has(bench, number, "new", ROWS)
        assert [*bench.labelled()] == [0, 1, 2]
        assert bench.member.ledger.sent == 3, "requests of the old content alone"

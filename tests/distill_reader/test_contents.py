"""The engine while its service moves to another model content, handler by handler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edl.distill_reader.engine.contents import Contents
from edl.distill_reader.engine.outcomes import Done, Job, Peer, Ready
from edl.distill_reader.engine.roster import Assigned, _fits
from edl.distill_reader.engine.teacher_link import TeacherLink
from edl.proto.arena import Arena
from edl.scheduler.switching import Advice
from edl.tests.distill_reader.test_engine import Bench, X

OLD = Peer("a", "127.0.0.1:9", "s", 1, "old")
NEW = Peer("b", "127.0.0.1:9", "s", 1, "new")


class Upgrade(Bench):
    """A bench whose teacher `a` serves the content "old" and has batches 0 and 1 in flight."""

    def assign(self, *peers: Peer, advice: Advice) -> None:
        self.engine._on_assigned(Assigned(peers, live=1, advice=advice))
        for peer in peers:
            link = self.engine._pool.link(peer.teacher_id)
            self.engine._on_outcome(link, Ready(("x",)))

    def answers(self, link: TeacherLink, number: int) -> None:
        record = self.arena.put([X])
        job = Job(number, {"x": X}, (), 2)
        self.engine._on_outcome(link, Done(job, ("soft",), record, 0.001, False, 0.01))

    @property
    def arena(self) -> Arena:
        return self.engine._labels.arena

    def in_flight_at(self, name: str) -> tuple[int, ...]:
        return self.engine._ledger.in_flight_at(name)

    @property
    def told(self) -> str:
        return self.engine._contents.switch.told


@pytest.fixture
def bench() -> Iterator[Upgrade]:
    bench = Upgrade()
    bench.say("reset", epoch=1, data_epoch=1, pulled=2)
    bench.engine._on_assigned(Assigned((), frozenset({"a"})))  # the bench's own teacher is gone
    bench.assign(OLD, advice=Advice("old", "", 1))
    for number in (2, 3):
        bench.batch(number)
    assert bench.in_flight_at("a") == (2, 3)
    yield bench
    bench.close()


def test_now_voids_what_is_not_delivered_and_frees_its_memory(bench: Upgrade) -> None:
    old = bench.engine._pool.link("a")
    bench.answers(old, 3)
    assert bench.engine._labels.nbytes > 0
    bench.assign(NEW, advice=Advice("new", "", 1))
    assert bench.engine._labels.nbytes == 0
    assert bench.in_flight_at("b") == (2, 3)
    bench.answers(old, 2)  # in time, and of the wrong content
    assert bench.engine._labels.discards == 1
    assert bench.engine._ledger.deliverable == 0
    new = bench.engine._pool.link("b")
    bench.answers(new, 2)
    assert bench.engine._ledger.deliverable == 1
    bench.answers(new, 3)
    assert bench.engine._ledger.deliverable == 2
    assert bench.told == "new"


def test_at_the_epoch_the_old_teachers_get_nothing_more(bench: Upgrade) -> None:
    bench.assign(OLD, advice=Advice("old", "new", 1))
    assert bench.in_flight_at("a") == (2, 3), "this epoch goes on"
    bench.say("reset", epoch=2, data_epoch=2, pulled=4)
    bench.batch(4)
    assert bench.engine._ledger.teachers == ()
    assert (bench.told, bench.engine._ledger.queued) == ("", 1)
    bench.say("waiting")
    bench.engine._decide(0.0)
    view = bench.engine._view()
    assert "waiting for a teacher of content new" in bench.engine._teller._waiting_for(view)
    bench.assign(NEW, advice=Advice("new", "", 2))
    assert bench.in_flight_at("b") == (4,)
    assert bench.told == "new"


def test_an_epoch_that_is_only_left_moves_nobody(bench: Upgrade) -> None:
    bench.assign(OLD, advice=Advice("old", "new", 1))
    bench.say("reset", epoch=2, data_epoch=1, pulled=4)
    assert bench.engine._ledger.teachers == ("a",)


def test_the_manager_changes_its_mind_and_the_old_teachers_come_back(bench: Upgrade) -> None:
    bench.assign(OLD, advice=Advice("old", "new", 1))
    bench.say("reset", epoch=2, data_epoch=2, pulled=4)
    bench.batch(4)
    bench.assign(OLD, advice=Advice("old", "", 2))
    bench.answers(bench.engine._pool.link("a"), 2)  # of the epoch that is over
    assert bench.in_flight_at("a") == (3, 4)
    assert bench.told == "old"


def test_a_teacher_of_another_content_is_never_sent_to(bench: Upgrade) -> None:
    assert _fits(OLD, "old")
    assert _fits(Peer("c", "127.0.0.1:9", "s"), "old"), "a foreign server names no content"
    assert not _fits(NEW, "old")


def test_a_new_engine_waits_where_the_old_one_waited(bench: Upgrade) -> None:
    bench.engine._contents = Contents()  # as it is when an engine starts
    bench.say("resumed", epoch=2, data_epoch=2, content_id="", pulled=4, ended=False, waiting=True)
    bench.engine._on_assigned(Assigned((OLD,), live=1, advice=Advice("old", "new", 1)))
    assert bench.told == ""
    assert bench.engine._ledger.teachers == ()

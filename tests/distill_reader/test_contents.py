"""The engine while its service moves to another model content, handler by handler."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.engine.contents import Contents, Legacy
from edl.distill_reader.engine.numerics import Numerics
from edl.distill_reader.engine.outcomes import Peer, Ready
from edl.distill_reader.engine.roster import AdvisedTeachers, Assigned, _fits
from edl.distill_reader.engine.teacher_link import TeacherLink
from edl.distill_reader.engine.words import waiting_for
from edl.proto import coordinator_pb2 as pb
from edl.scheduler.switching import Advice
from edl.tests.distill_reader.test_engine import Bench

OLD = Peer("a", "127.0.0.1:9", "s", 1, "old")
NEW = Peer("b", "127.0.0.1:9", "s", 1, "new")


class Upgrade(Bench):
    """A bench whose teacher `a` serves the content "old" and has batches 0 and 1 in flight."""

    def assign(self, *peers: Peer, advice: Advice) -> None:
        self.member._on_assigned(Assigned(peers, live=1, epoch=(7, 1), advice=advice))
        for peer in peers:
            link = self.member.pool.link(peer.teacher_id)
            self.member._on_outcome(link, Ready(("x",)))

    @property
    def told(self) -> str:
        return self.member.contents.switch.told


@pytest.fixture
def bench() -> Iterator[Upgrade]:
    bench = Upgrade()
    bench.say("reset", epoch=1, data_epoch=1, pulled=2)
    bench.member._on_assigned(Assigned((), frozenset({"a"})))  # the bench's own teacher is gone
    bench.assign(OLD, advice=Advice("old", "", 1))
    for number in (2, 3):
        bench.batch(number)
    assert bench.batches_at("a") == [2, 3]
    yield bench
    bench.close()


def test_now_voids_what_is_not_delivered_and_frees_its_memory(bench: Upgrade) -> None:
    old = bench.member.pool.link("a")
    bench.answers(old, bench.job("a", 3))
    late = bench.job("a", 2)
    assert bench.member.labels.nbytes > 0
    bench.assign(NEW, advice=Advice("new", "", 1))
    assert bench.member.labels.nbytes == 0
    assert bench.batches_at("b") == [2, 3]
    bench.answers(old, late)  # in time, and of the wrong content
    assert bench.member.labels.discards == 1
    assert bench.member.ledger.deliverable == 0
    new = bench.member.pool.link("b")
    bench.answers(new, bench.job("b", 2))
    assert bench.member.ledger.deliverable == 1
    bench.answers(new, bench.job("b", 3))
    assert bench.member.ledger.deliverable == 2
    assert bench.told == "new"


def test_at_the_epoch_the_old_teachers_get_nothing_more(bench: Upgrade) -> None:
    bench.assign(OLD, advice=Advice("old", "new", 1))
    assert bench.batches_at("a") == [2, 3], "this epoch goes on"
    bench.say("reset", epoch=2, data_epoch=2, pulled=4)
    bench.batch(4)
    assert bench.member.ledger.teachers == ()
    assert (bench.told, bench.member.ledger.queued) == ("", 1)
    bench.say("waiting")
    bench.engine._decide(0.0)
    assert "waiting for a teacher of content new" in waiting_for(bench.member)
    bench.assign(NEW, advice=Advice("new", "", 2))
    assert bench.batches_at("b") == [4]
    assert bench.told == "new"


def test_an_epoch_that_is_only_left_moves_nobody(bench: Upgrade) -> None:
    bench.assign(OLD, advice=Advice("old", "new", 1))
    bench.say("reset", epoch=2, data_epoch=1, pulled=4)
    assert bench.member.ledger.teachers == ("a",)


def test_the_manager_changes_its_mind_and_the_old_teachers_come_back(bench: Upgrade) -> None:
    bench.assign(OLD, advice=Advice("old", "new", 1))
    bench.say("reset", epoch=2, data_epoch=2, pulled=4)
    bench.batch(4)
    bench.assign(OLD, advice=Advice("old", "", 2))
    bench.answers(bench.member.pool.link("a"), bench.job("a", 2))  # of the epoch that is over
    assert bench.batches_at("a") == [3, 4]
    assert bench.told == "old"


def test_a_teacher_of_another_content_is_never_sent_to(bench: Upgrade) -> None:
    assert _fits(OLD, "old")
    assert _fits(Peer("c", "127.0.0.1:9", "s"), "old"), "a foreign server names no content"
    assert not _fits(NEW, "old")


def succeed(bench: Upgrade, data_epoch: int, legacy: Legacy) -> None:
    """Have the bench's engine go on as another one that is told this."""
    told = {"s": json.loads(json.dumps(legacy.to_json()))}
    bench.member.contents = Contents(Numerics(False))  # as it is when an engine starts
    bench.say(
        "resumed",
        epoch=2,
        data_epoch=data_epoch,
        legacies=told,
        pulled=4,
        ended=False,
        waiting=True,
    )


def test_a_new_engine_waits_where_the_old_one_waited(bench: Upgrade) -> None:
    bench.assign(OLD, advice=Advice("old", "new", 1))
    bench.say("reset", epoch=2, data_epoch=2, pulled=4)
    succeed(bench, 2, bench.member.contents.legacy)
    assert (bench.told, bench.member.contents.switch.awaited) == ("", "new")
    bench.member._on_assigned(Assigned((OLD,), live=1, advice=Advice("old", "new", 1)))
    assert bench.told == ""
    assert bench.member.ledger.teachers == ()


def test_a_new_engine_has_the_teachers_of_the_old_one_until_a_manager_says_others(
    bench: Upgrade,
) -> None:
    advised = Assigned((OLD,), live=1, epoch=(7, 3), advice=Advice("old", "", 1))
    bench.member._on_assigned(advised)
    succeed(bench, 1, bench.member.contents.legacy)
    assert bench.told == "old"
    assert bench.member.contents.legacy.assigned == advised
    assert bench.member.epoch == (7, 3), "so that the next manager begins above it"
    assert bench.member.pool.is_assigned(bench.member.pool.link("a"))
    newer = Assigned((NEW,), frozenset({"a"}), 1, (7, 4), Advice("new", "", 1))
    bench.member._on_assigned(newer)
    assert bench.told == "new"
    assert not bench.member.pool.holds(TeacherLink(OLD, 1.0, lambda link, outcome: None))
    assert bench.member.pool.link("b")


def test_what_a_manager_said_first_is_newer_than_what_the_old_engine_knew() -> None:
    contents = Contents(Numerics(False))
    contents.assigned(Assigned((NEW,), epoch=(7, 4), advice=Advice("new", "", 1)), 0.0)
    left = Legacy("old", False, Assigned((OLD,), epoch=(7, 3), advice=Advice("old", "", 1)))
    assigned, anew = contents.resumed(1, left, 0.1)
    assert (assigned.peers, anew) == ((NEW,), True)
    assert contents.legacy.content_id == "new"


def test_an_epoch_that_keeps_to_its_content_does_so_with_the_next_engine() -> None:
    """It had begun when the manager came back and moved the student."""
    contents = Contents(Numerics(False))
    old = Assigned((OLD,), epoch=(7, 3), advice=Advice("old", "new", 1))
    contents.assigned(old, 0.0)
    contents.epoch_began(2, 0.0)
    contents.look(0.0, False, 0)
    contents.look(10.0, False, 0)  # no coordinator answers: the epoch begins as it is
    contents.assigned(Assigned((NEW,), epoch=(7, 4), advice=Advice("new", "", 2)), 11.0)
    assert contents.legacy.assigned.peers == (OLD,)
    after = Contents(Numerics(False))
    assert after.resumed(2, contents.legacy, 0.0) == (old, False)
    assigned, anew = after.assigned(
        Assigned((NEW,), epoch=(7, 4), advice=Advice("new", "", 2)), 1.0
    )
    assert (assigned.peers, anew) == ((OLD,), False)


def test_a_teacher_without_an_address_is_the_one_that_the_old_engine_knew() -> None:
    heard: list[Assigned] = []
    config = ReaderConfig("s", coordinator="memory://nobody")
    roster = AdvisedTeachers(config, "memory://nobody", heard.append, lambda error: None)
    try:
        roster.remember(Assigned((OLD,)))
        message = pb.Assignment(term=8, counter=1, teachers=[pb.Teacher(teacher_id="a")])
        roster._on_message(message)
        assert heard[0].peers == (OLD,)
        roster.remember(Assigned((NEW,)))  # too late: a manager has answered
        roster._on_message(pb.Assignment(teachers=[pb.Teacher(teacher_id="b")]))
        assert heard[1].peers == ()
    finally:
        roster.stop()

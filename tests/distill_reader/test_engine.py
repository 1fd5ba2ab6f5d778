"""The engine's handlers, called as its thread calls them: orders of events that are rare."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.engine.engine import Engine
from edl.distill_reader.engine.member import Member
from edl.distill_reader.engine.outcomes import Broke, Done, Job, Peer, Ready
from edl.distill_reader.engine.reporting import report
from edl.distill_reader.engine.roster import Assigned
from edl.distill_reader.engine.teacher_link import TeacherLink
from edl.errors import BadAnswer, RetryableError
from edl.proto.arena import Arena, Array
from edl.proto.channel import Channel
from edl.proto.lent_arena import LentArena
from edl.scheduler.ledger import events as ev

PEER = Peer("a", "127.0.0.1:9", "s")  # where nobody listens: what it answers is told by the test
X = np.ones((2, 3), np.float32)


class Bench:
    """An engine that does not run; its teacher has both of its windows filled."""

    def __init__(self, **config: Any) -> None:
        self._channel, fd = Channel.pair()
        self._trainer = Channel.attach(fd)
        self._arenas = (LentArena.create(), Arena.create())
        self.engine = Engine(
            ReaderConfig("s", teachers=(PEER.address,), **config), self._channel, *self._arenas
        )
        self.member._on_assigned(Assigned((PEER,)))
        self.member._on_outcome(self.link, Ready(("x",)))
        for number in (0, 1):
            self.batch(number)
        assert self.batches_at("a") == [0, 1]

    @property
    def member(self) -> Member:
        (member,) = self.engine.members
        return member

    @property
    def link(self) -> TeacherLink:
        return self.member.pool.link("a")

    def batch(self, number: int, array: Array = X) -> None:
        (ref,) = self._arenas[0].put([array]).arrays
        self.say("batch", number=number, nbytes=64, samples=len(array), fields=[[0, ref.to_json()]])

    def jobs_at(self, name: str) -> list[Job]:
        """What a teacher has been sent and not answered, the longest first."""
        return [
            Job(one.request, one.spans, {"x": X}, (), one.rows)
            for one in self.member.ledger.requests_at(name)
        ]

    def batches_at(self, name: str) -> list[int]:
        return [span.batch for job in self.jobs_at(name) for span in job.spans]

    def job(self, name: str, number: int) -> Job:
        """The request for a batch that a teacher has."""
        return next(
            job for job in self.jobs_at(name) if number in [span.batch for span in job.spans]
        )

    def say(self, kind: str, **fields: Any) -> None:
        self.engine._on_message({"kind": kind, "source_s": 0.0, **fields})

    def breaks(self, number: int, error: Any) -> None:
        self.member._on_outcome(self.link, Broke(self.job("a", number), error))

    def answers(self, link: TeacherLink, job: Job, **labels: Array) -> None:
        done = Done(job, labels or {"soft": X}, 0.001, False, 0.01)
        self.member._on_outcome(link, done)

    def close(self) -> None:
        self.member.pool.close()
        for closable in (self._channel, self._trainer, *self._arenas):
            closable.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def test_a_revoked_teacher_that_fails_and_answers_a_probe_gets_nothing_new(bench: Bench) -> None:
    member, link = bench.member, bench.link
    member._on_assigned(Assigned(()))
    bench.breaks(0, RetryableError("for a while"))
    member._on_outcome(link, Ready(("x",)))
    assert bench.batches_at("a") == [1]
    assert member.ledger.teachers == ()


def test_pauses_that_have_grown_long_end_when_there_is_nobody_else(bench: Bench) -> None:
    member, other = bench.member, Peer("b", "127.0.0.1:9", "s")
    member._on_assigned(Assigned((PEER, other)))
    member._on_outcome(member.pool.link("b"), Ready(("x",)))
    member.carrying.handle(ev.Readmitted("b"))
    bench.breaks(0, BadAnswer("not finite"))
    now = time.monotonic()
    for _ in range(6):
        member.crew.wrong("a", now)
    assert member.crew.pause_s("a", now) > 15.0
    member.pool.link("a").connect(member.crew.pause_s("a", now))
    member._on_assigned(Assigned((PEER,), frozenset({"b"})))
    member.look(now + 0.9)
    assert not member.pool.link("a")._paused_enough.is_set()
    member.look(now + 1.1)
    assert member.pool.link("a")._paused_enough.is_set()


def test_the_only_teacher_is_probed_soon_however_often_it_was_wrong(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(TeacherLink, "connect", lambda _, pause_s=0.0: pauses.append(pause_s))
    for _ in range(6):
        bench.member.crew.wrong("a", time.monotonic())
    bench.breaks(0, BadAnswer("not finite"))
    assert pauses == [pytest.approx(1.0, abs=0.2)]


def test_what_a_revoked_teacher_keeps_to_itself_is_asked_of_another(bench: Bench) -> None:
    member, other = bench.member, Peer("b", "127.0.0.1:9", "s")
    member._on_assigned(Assigned((PEER, other)))
    member._on_outcome(member.pool.link("b"), Ready(("x",)))
    for name in ("a", "b"):
        member.crew.speeds.times.answered(name, 2, 0.01)
    member._on_assigned(Assigned((other,)))
    now = time.monotonic()
    for tick in range(200):
        member.look(now + 0.05 * tick)
        for job in bench.jobs_at("b"):
            bench.answers(member.pool.link("b"), job)
    assert member.ledger.deliverable == 2
    assert bench.batches_at("a") == [0, 1]


def test_several_teachers_may_be_lost_at_once() -> None:
    bench = Bench(window=3)
    try:
        other = Peer("b", "127.0.0.1:9", "s")
        bench.member._on_assigned(Assigned((PEER, other)))
        bench.member._on_outcome(bench.member.pool.link("b"), Ready(("x",)))
        bench.member._on_assigned(Assigned((), frozenset({"a", "b"})))
        assert bench.member.ledger.queued == 2
        assert (bench.member.ledger.in_flight, bench.member.ledger.teachers) == (0, ())
    finally:
        bench.close()


def test_an_answer_to_what_was_left_throws_no_teacher_out(bench: Bench) -> None:
    """The memory of the old epoch's batches is used again, perhaps while it is being sent."""
    bench.say("reset", epoch=1, data_epoch=1, pulled=2)
    bench.breaks(0, BadAnswer("not finite"))
    assert bench.member.ledger.teachers == ("a",)
    assert bench.batches_at("a") == [1]
    bench.say("reset", epoch=2, data_epoch=2, pulled=2)
    assert bench.member.pool.unreachable == 0


def test_a_bad_answer_to_what_is_wanted_does(bench: Bench) -> None:
    bench.breaks(0, BadAnswer("not finite"))
    assert bench.member.ledger.teachers == ()
    assert bench.member.pool.unreachable == 1


def test_the_coordinator_is_told_what_the_job_may_ask_for() -> None:
    bench = Bench(teachers_min=2, priority=-3)
    try:
        told = report(bench.member, starves=True, now=0.0)
        assert (told.min, told.priority, told.state) == (2, -3, "starved")
        assert told.want >= told.min
    finally:
        bench.close()

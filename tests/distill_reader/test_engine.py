"""The engine's handlers, called as its thread calls them: orders of events that are rare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.engine.engine import Engine
from edl.distill_reader.engine.outcomes import Broke, Job, Peer, Ready
from edl.distill_reader.engine.roster import Assigned
from edl.distill_reader.engine.teacher_link import TeacherLink
from edl.distill_reader.engine.telling import report
from edl.errors import BadAnswer, RetryableError
from edl.proto.arena import Arena
from edl.proto.channel import Channel
from edl.proto.lent_arena import LentArena

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
        self.engine._on_assigned(Assigned((PEER,)))
        self.engine._on_outcome(self.link, Ready(("x",)))
        for number in (0, 1):
            self.batch(number)
        assert self.engine._ledger.in_flight_at("a") == (0, 1)

    @property
    def link(self) -> TeacherLink:
        return self.engine._pool.link("a")

    def batch(self, number: int) -> None:
        (ref,) = self._arenas[0].put([X]).arrays
        self.say("batch", number=number, nbytes=64, samples=2, fields=[[0, ref.to_json()]])

    def say(self, kind: str, **fields: Any) -> None:
        self.engine._on_message({"kind": kind, "source_s": 0.0, **fields})

    def breaks(self, number: int, error: Any) -> None:
        self.engine._on_outcome(self.link, Broke(Job(number, {"x": X}, (), 2), error))

    def close(self) -> None:
        self.engine._pool.close()
        for closable in (self._channel, self._trainer, *self._arenas):
            closable.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def test_a_revoked_teacher_that_fails_and_answers_a_probe_gets_nothing_new(bench: Bench) -> None:
    engine, link = bench.engine, bench.link
    engine._on_assigned(Assigned(()))
    bench.breaks(0, RetryableError("for a while"))
    engine._on_outcome(link, Ready(("x",)))
    assert engine._ledger.in_flight_at("a") == (1,)
    assert engine._ledger.teachers == ()


def test_an_answer_to_what_was_left_throws_no_teacher_out(bench: Bench) -> None:
    """The memory of the old epoch's batches is used again, perhaps while it is being sent."""
    bench.say("reset", epoch=1, data_epoch=1, pulled=2)
    bench.breaks(0, BadAnswer("not finite"))
    assert bench.engine._ledger.teachers == ("a",)
    assert bench.engine._ledger.in_flight_at("a") == (1,)
    bench.say("reset", epoch=2, data_epoch=2, pulled=2)
    assert bench.engine._pool.unreachable == 0


def test_a_bad_answer_to_what_is_wanted_does(bench: Bench) -> None:
    bench.breaks(0, BadAnswer("not finite"))
    assert bench.engine._ledger.teachers == ()
    assert bench.engine._pool.unreachable == 1


def test_the_coordinator_is_told_what_the_job_may_ask_for() -> None:
    bench = Bench(teachers_min=2, priority=-3)
    try:
        told = report(bench.engine._config, bench.engine._view(), starves=True, now=0.0)
        assert (told.min, told.priority, told.state) == (2, -3, "starved")
        assert told.want >= told.min
    finally:
        bench.close()

"""A teacher of this host is asked in the engine's own thread, as long as all goes well."""

from __future__ import annotations

import itertools
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager

import numpy as np
import pytest

from edl.distill_reader.engine.inbox import Inbox
from edl.distill_reader.engine.outcomes import Broke, Done, Job, Outcome, Peer, Ready
from edl.distill_reader.engine.teacher_link import TeacherLink
from edl.errors import DeadlineExceeded, RequestRefused
from edl.proto.clients.near_line import NearLine
from edl.proto.lent_arena import LentArena
from edl.scheduler.ledger.instructions import Span
from edl.tests.teacher.bench import Bench
from edl.tests.teacher.fakes import array

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets without a file")

WAIT_S = 10.0
ROWS = 3


class Neighbour:
    """A link to a teacher in this process, and the thread of the engine, which is the test's."""

    def __init__(self, bench: Bench, arena: LentArena) -> None:
        self.inbox = Inbox()
        self.outcomes: deque[Outcome] = deque()
        self._arena = arena
        self._numbers = itertools.count()
        peer = Peer("t1", bench.address, "resnet", 41)
        post = lambda _, outcome: self.inbox.post(self.outcomes.append, outcome)  # noqa: E731
        self.link = TeacherLink(peer, WAIT_S, post, batches=arena, inbox=self.inbox)
        self.link.connect()
        assert self.outcome() == Ready(("x",))

    def send(self, start: float = 0.0, inputs: str = "x") -> Job:
        number = next(self._numbers)
        record = self._arena.put([array(ROWS, 4) + np.float32(start)])
        x = self._arena.get(record.arrays[0])
        job = Job(number, (Span(number, 0, ROWS),), {inputs: x}, ("double",), ROWS)
        self.link.send(job)
        return job

    def go_out(self) -> None:
        """Have what was asked go out, as before the engine's thread waits."""
        for event in self.inbox.next(1e-6) or ():
            event()

    def outcome(self) -> Outcome:
        """What is posted next."""
        until = time.monotonic() + WAIT_S
        while not self.outcomes:
            assert time.monotonic() < until, "nothing came"
            for event in self.inbox.next(WAIT_S) or ():
                event()
        return self.outcomes.popleft()

    def label(self, start: float = 0.0) -> None:
        """Have a batch labelled."""
        job, done = self.send(start), self.outcome()
        assert isinstance(done, Done)
        assert done.job is job
        x = job.inputs["x"]
        assert isinstance(x, np.ndarray)
        np.testing.assert_array_equal(done.labels["double"], x * 2)

    def warm_up(self) -> None:
        """Until there is a line to be asked by."""
        for number in range(100):
            self.label(number)
            near = self.link._near
            assert near is not None
            if near.has_room:
                return
        pytest.fail("no line was opened")

    def close(self) -> None:
        self.link.close()
        self.inbox.close()


@contextmanager
def held(bench: Bench) -> Iterator[None]:
    """The model answers nothing meanwhile."""
    go_on = threading.Event()
    bench.labeller.before = lambda: _require(go_on.wait(WAIT_S))
    try:
        yield
    finally:
        go_on.set()


def _require(went_on: bool) -> None:
    assert went_on


@pytest.fixture
def bench() -> Iterator[Bench]:
    with closing(Bench()) as made:
        yield made


@pytest.fixture
def near(bench: Bench) -> Iterator[Neighbour]:
    with closing(LentArena.create()) as arena, closing(Neighbour(bench, arena)) as made:
        yield made


def test_no_other_thread_sends_once_a_line_is_open(
    near: Neighbour, monkeypatch: pytest.MonkeyPatch
) -> None:
    near.warm_up()
    monkeypatch.setattr(near.link, "_hand_to_thread", lambda _: pytest.fail("a thread was asked"))
    for number in range(20):
        near.label(number)
    jobs = [near.send(number) for number in (5, 6)]
    dones = [near.outcome(), near.outcome()]
    assert [done.job for done in dones if isinstance(done, Done)] == jobs


def test_what_is_asked_before_anything_is_waited_for_goes_out_by_one_call(
    near: Neighbour, monkeypatch: pytest.MonkeyPatch
) -> None:
    near.warm_up()
    sent: list[bytes] = []
    send = NearLine.send

    def count(line: NearLine) -> None:
        sent.append(b"".join(line._unsent))
        send(line)

    monkeypatch.setattr(NearLine, "send", count)
    jobs = [near.send(number) for number in (5, 6)]
    assert not sent
    dones = [near.outcome(), near.outcome()]
    assert [done.job for done in dones if isinstance(done, Done)] == jobs
    assert len(sent) == 1
    near.label()
    assert 2 * len(sent[1]) == len(sent[0]), "nothing is sent twice"


def test_what_was_asked_by_a_line_that_breaks_before_it_goes_out_is_asked_again(
    near: Neighbour,
) -> None:
    near.warm_up()
    assert near.link._near is not None
    jobs = [near.send(number) for number in (5, 6)]
    for line in near.link._near._lines:
        line._socket.shutdown(socket.SHUT_RDWR)
    dones = [near.outcome(), near.outcome()]
    assert {done.job.request for done in dones if isinstance(done, Done)} == {
        job.request for job in jobs
    }
    near.warm_up()


def test_a_link_that_is_closed_before_anything_goes_out_sends_nothing(near: Neighbour) -> None:
    near.warm_up()
    near.send()
    near.link.close()
    assert near.inbox.next(0.1) == []


def test_a_refusal_is_looked_into_by_a_thread(near: Neighbour) -> None:
    near.warm_up()
    job = near.send(inputs="other")
    broke = near.outcome()
    assert isinstance(broke, Broke)
    assert broke.job is job
    assert isinstance(broke.error, RequestRefused)
    near.label()


def test_what_was_on_a_line_that_breaks_is_asked_again(near: Neighbour, bench: Bench) -> None:
    near.warm_up()
    with held(bench):
        job = near.send()
        near.go_out()
        assert near.link._near is not None
        for line in near.link._near._lines:
            line._socket.shutdown(socket.SHUT_RDWR)
    done = near.outcome()
    assert isinstance(done, Done)
    assert done.job is job
    near.warm_up()


def test_an_answer_that_is_late_is_not_waited_for(near: Neighbour, bench: Bench) -> None:
    near.warm_up()
    with held(bench):
        job = near.send()
        near.go_out()
        near.link.look(time.monotonic() + WAIT_S)
        broke = near.outcome()
    assert isinstance(broke, Broke)
    assert broke.job is job
    assert isinstance(broke.error, DeadlineExceeded)
    near.warm_up()


def test_a_link_that_is_closed_says_nothing_more(near: Neighbour, bench: Bench) -> None:
    near.warm_up()
    with held(bench):
        near.send()
        near.go_out()
        near.link.close()
    assert near.inbox.next(0.1) == []

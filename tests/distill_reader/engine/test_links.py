"""Links to one teacher in this process: by threads, then by connections of the transport."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest

from edl.distill_reader import Timeouts
from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.engine import teacher_link
from edl.distill_reader.engine.inbox import Inbox
from edl.distill_reader.engine.teacher_link import TeacherLink
from edl.distill_reader.engine.teacher_requests import (
    Outcome,
    RequestDone,
    RequestOrProbeFailure,
    TeacherReady,
    TeacherRequest,
)
from edl.proto.arena import Array
from edl.proto.clients.oip_grpc import OipGrpcClient
from edl.proto.clients.transport import TransportConnection
from edl.proto.shared_buffer import SharedBuffer
from edl.runtime.errors import BadAnswer, DeadlineExceeded, RequestRefused, RetryableError
from edl.scheduler.ledger.events import Span
from edl.scheduler.reader_core.events import Peer
from edl.tests.foreign_server import MODEL, ForeignGrpc
from edl.tests.scripted_teacher import logits_of
from edl.tests.teacher.bench import Bench
from edl.tests.teacher.fakes import array
from edl.tests.waiting import wait_until

WAIT_S = 60.0
ROWS = 3


class Neighbour:
    """A link to a teacher in this process, and the thread of the engine: the test's."""

    def __init__(self, arena: SharedBuffer, peer: Peer, fetches: tuple[str, ...]) -> None:
        self.inbox = Inbox()
        self.outcomes: deque[Outcome] = deque()
        self.by_threads = 0
        self._arena = arena
        self._numbers = itertools.count()
        timeouts = Timeouts(request_s=WAIT_S)
        config = ReaderConfig("s", teachers=("h:1",), fetches=fetches, timeouts=timeouts)
        self.link = TeacherLink(peer, config, self._post, self.inbox, arena)
        self.link.probe()

    def _post(self, _: TeacherLink, outcome: Outcome) -> None:
        self.by_threads += threading.current_thread().name.startswith("edl-sender")
        self.inbox.post(self.outcomes.append, outcome)

    def send(self, start: float = 0.0, inputs: str = "x") -> TeacherRequest:
        number = next(self._numbers)
        record = self._arena.put([array(ROWS, 4) + np.float32(start)])
        x = self._arena.get(record.arrays[0])
        request = TeacherRequest(number, (Span(number, 0, ROWS),), {inputs: x}, ROWS)
        self.link.send(request)
        return request

    def go_out(self) -> None:
        """Have requests go out, as before the engine's thread waits."""
        for event in self.inbox.next(1e-6) or ():
            event()

    def outcome(self) -> Outcome:
        """What is posted next."""
        deadline = time.monotonic() + WAIT_S
        while not self.outcomes:
            assert time.monotonic() < deadline, "nothing came"
            for event in self.inbox.next(WAIT_S) or ():
                event()
        return self.outcomes.popleft()

    def done(self) -> list[TeacherRequest]:
        """The requests of the next two outcomes, which are labels."""
        outcomes = [self.outcome(), self.outcome()]
        return [outcome.request for outcome in outcomes if isinstance(outcome, RequestDone)]

    def label(self, start: float = 0.0) -> None:
        """Have a batch labelled."""
        request, done = self.send(start), self.outcome()
        assert isinstance(done, RequestDone)
        assert done.request is request
        x = request.inputs["x"]
        assert isinstance(x, np.ndarray)
        np.testing.assert_array_equal(done.labels["double"], x * 2)

    def warm_up(self) -> None:
        """Label until no thread is needed for it."""

        def without_thread() -> bool:
            before = self.by_threads
            self.label()
            return self.by_threads == before

        wait_until(without_thread)  # a connection has been opened

    def close(self) -> None:
        self.link.close()
        self.inbox.close()


Link = Callable[..., Neighbour]


@pytest.fixture
def link() -> Iterator[Link]:
    """Makes links by which these outputs are asked for, all if none; they are closed at the end."""
    with ExitStack() as stack:
        batches = stack.enter_context(closing(SharedBuffer.create()))
        yield lambda peer, *fetches: stack.enter_context(closing(Neighbour(batches, peer, fetches)))


# --- threads that probe and send


@pytest.fixture
def server() -> Iterator[ForeignGrpc]:
    made = ForeignGrpc()
    yield made
    made.stop()


def test_only_teachers_of_ours_are_asked_for_a_connection(
    bench: Bench, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(OipGrpcClient, "connect", lambda self, arena: asked.append(arena))
    for foreign in (True, False):
        made = link(Peer("t1", bench.address, "resnet", foreign=foreign))
        assert made.outcome() == TeacherReady(("x",))
        assert len(asked) == (not foreign)


def test_a_probe_says_what_is_wrong_and_the_next_one_that_it_serves(
    server: ForeignGrpc, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        no_room = mock.Mock(side_effect=MemoryError("no room"))
        patch.setattr(teacher_link, "open_client", no_room)
        made = link(Peer("t", server.address, MODEL))
        assert isinstance(error_of(made.outcome()), RetryableError)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", mock.Mock(side_effect=RuntimeError("no threads")))
        made.link.probe()
    assert "no threads" in str(error_of(made.outcome()))
    made.link.probe()
    assert made.outcome() == TeacherReady(("x",))
    wait_until(lambda: not probers())
    assert made.inbox.next(0.0) == []


def error_of(outcome: Outcome) -> Exception:
    assert isinstance(outcome, RequestOrProbeFailure)
    return outcome.error


def probers(teacher: str = "t") -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == f"edl-prober-{teacher}"]


class Vague(ForeignGrpc):
    """Does not describe its model, and names its output as it is told: the last name for good."""

    names: Sequence[str] = ()

    def ModelInfer(self, request: Any, context: Any) -> Any:
        answer = super().ModelInfer(request, context)
        answer.outputs[0].name = self.names[min(self.requests, len(self.names)) - 1]
        return answer


@pytest.fixture
def vague() -> Iterator[Vague]:
    made = Vague()
    made.describes = False
    yield made
    made.stop()


JOB = TeacherRequest(1, (Span(0, 0, 2),), {"x": np.ones((2, 6), np.float32)}, 2)


@pytest.mark.parametrize(
    ("names", "outcomes"),
    [
        (("y", "y", "x", "y"), (RequestDone, "lacks 'y'", RequestDone)),
        (("y", "x"), ("when asked again",)),
    ],
)
def test_undescribed_outputs_have_the_names_that_came_twice(
    vague: Vague, link: Link, names: Sequence[str], outcomes: Sequence[Any]
) -> None:
    vague.names = names
    made = link(Peer("t", vague.address, MODEL, inputs=("x",)))
    assert made.outcome() == TeacherReady(("x",))
    for expected in outcomes:
        made.link.send(JOB)
        outcome = made.outcome()
        if expected is RequestDone:
            assert isinstance(outcome, RequestDone)
        else:
            with pytest.raises(BadAnswer, match=expected):
                raise error_of(outcome)
    assert vague.requests == len(names)


def answer_nan(x: Array) -> Array:
    return logits_of(x) * np.float32(np.nan)


def out_of_memory(x: Array) -> Array:
    raise MemoryError("out of device memory")


@pytest.mark.parametrize(
    ("behaviour", "x", "error", "words"),
    [
        (out_of_memory, np.ones((2, 6)), RetryableError, "memory"),
        (out_of_memory, np.ones((2, 7)), RequestRefused, r"declared as \[-1, 6\]"),
        (answer_nan, np.ones((2, 6)), BadAnswer, "not finite"),
        (answer_nan, np.full((2, 6), np.nan), RequestRefused, "input 'x' holds values"),
    ],
)
def test_a_batch_that_does_not_fit_or_is_not_finite_is_blamed_for_a_failure(
    server: ForeignGrpc,
    link: Link,
    behaviour: Callable[[Array], Array],
    x: Array,
    error: type[Exception],
    words: str,
) -> None:
    server.behaviour = behaviour
    made = link(Peer("t", server.address, MODEL))
    assert made.outcome() == TeacherReady(("x",))
    made.link.send(JOB._replace(inputs={"x": x.astype(np.float32)}))
    with pytest.raises(error, match=words):
        raise error_of(made.outcome())


# --- connections of the transport, by which the engine's thread asks


@contextmanager
def held(bench: Bench) -> Iterator[None]:
    """The model answers nothing meanwhile."""
    go_on = threading.Event()

    def wait() -> None:
        assert go_on.wait(WAIT_S)

    bench.labeller.before = wait
    try:
        yield
    finally:
        go_on.set()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with closing(Bench()) as made:
        yield made


def linked(bench: Bench, link: Link) -> Neighbour:
    """A link that has been probed."""
    bench.labeller.before = lambda: None
    made = link(Peer("t1", bench.address, "resnet", 41), "double")
    assert made.outcome() == TeacherReady(("x",))
    return made


@pytest.fixture
def near(bench: Bench, link: Link) -> Neighbour:
    """A link whose connection is open."""
    made = linked(bench, link)
    made.warm_up()
    return made


def break_next(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Have the next call of a method of connections fail."""
    whole = getattr(TransportConnection, method)
    failures = iter([ConnectionResetError("it broke")])

    def fail_once(line: TransportConnection) -> Any:
        for error in failures:
            raise error
        return whole(line)

    monkeypatch.setattr(TransportConnection, method, fail_once)


def test_no_thread_sends_once_a_connection_is_open(near: Neighbour) -> None:
    before = near.by_threads
    for number in range(20):
        near.label(number)
    requests = [near.send(number) for number in (5, 6)]
    assert {request.number for request in near.done()} == {request.number for request in requests}
    assert near.by_threads == before


@pytest.mark.parametrize("method", ["send", "receive"])
def test_resend_after_break(near: Neighbour, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    requests = [near.send(number) for number in (5, 6)]
    break_next(monkeypatch, method)
    assert {request.number for request in near.done()} == {request.number for request in requests}
    near.warm_up()


def test_a_refusal_is_what_the_teacher_says(near: Neighbour) -> None:
    request, before = near.send(inputs="other"), near.by_threads
    broke = near.outcome()
    assert isinstance(broke, RequestOrProbeFailure)
    assert (broke.request, near.by_threads) == (request, before)
    assert isinstance(broke.error, RequestRefused)
    near.label()


@pytest.mark.parametrize("out", [True, False])
def test_an_answer_that_is_late_is_not_waited_for(near: Neighbour, bench: Bench, out: bool) -> None:
    with held(bench):
        request = near.send()
        if out:
            near.go_out()
        near.link.check_deadlines(time.monotonic() + WAIT_S)
        broke = near.outcome()
    assert isinstance(broke, RequestOrProbeFailure)
    assert broke.request is request
    assert isinstance(broke.error, DeadlineExceeded)
    near.warm_up()


def test_all_late_requests_of_a_connection_fail(near: Neighbour, bench: Bench) -> None:
    with held(bench):
        requests, before = [near.send(number) for number in (5, 6)], near.by_threads
        near.link.check_deadlines(time.monotonic() + WAIT_S)
        broke = [near.outcome(), near.outcome()]
    assert [one.request for one in broke if isinstance(one, RequestOrProbeFailure)] == requests
    assert near.by_threads == before, "one was sent again"


@pytest.mark.parametrize("out", [True, False])
def test_a_link_that_is_closed_posts_nothing_more(near: Neighbour, bench: Bench, out: bool) -> None:
    with held(bench):
        near.send()
        if out:
            near.go_out()
        near.link.close()
    assert near.inbox.next(0.1) == []


def test_one_connection_is_opened_at_a_time(
    bench: Bench, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, go_on = threading.Event(), threading.Event()
    whole = OipGrpcClient.connect
    opened: list[object] = []

    def connect(client: OipGrpcClient, arena: SharedBuffer | None) -> TransportConnection | None:
        opened.append(arena)
        opening.set()
        assert go_on.wait(WAIT_S)
        return whole(client, arena)

    monkeypatch.setattr(OipGrpcClient, "connect", lambda *_: None)
    near = linked(bench, link)
    wait_until(lambda: not probers("t1"))
    monkeypatch.setattr(OipGrpcClient, "connect", connect)
    near.label()
    assert opening.wait(WAIT_S)
    for number in range(5):
        near.label(number)
    go_on.set()
    near.warm_up()
    assert len(opened) == 1


def test_what_was_lost_with_a_connection_breaks_where_no_thread_can_be_started(
    bench: Bench, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = linked(bench, link)
    wait_until(lambda: not probers("t1"))  # which have opened a connection
    with held(bench), monkeypatch.context() as patch:
        no_threads = mock.Mock(side_effect=RuntimeError("no threads"))
        patch.setattr(threading.Thread, "start", no_threads)
        requests = [near.send(number) for number in (5, 6)]
        break_next(patch, "send")
        broke = [near.outcome(), near.outcome()]
    assert [one.request for one in broke if isinstance(one, RequestOrProbeFailure)] == requests
    assert all(
        "no threads" in str(one.error) for one in broke if isinstance(one, RequestOrProbeFailure)
    )
    near.warm_up()

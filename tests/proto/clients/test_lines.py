"""Kept connections: when another is opened, what becomes of a request whose connection ends."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import pytest

from edl.errors import DeadlineExceeded, RateLimited, TeacherLost
from edl.proto.clients.lines import Ended, Lines
from edl.tests.waiting import DEADLINE_S, wait_until


class Scripted:
    """A line; `behave` is called for each request with its message, of which it has `deadlines`."""

    def __init__(self, behave: Callable[[bytes], bytes]) -> None:
        self.behave = behave
        self.ended = threading.Event()
        self.is_open = True
        self.deadlines: list[float] = []

    def ask(self, message: bytes, until_s: float) -> memoryview:
        self.deadlines.append(until_s)
        if self.ended.is_set():
            raise Ended(TeacherLost("it was ended"))
        return memoryview(self.behave(message))

    def end(self) -> None:
        self.ended.set()


class Opener:
    def __init__(self, *script: Callable[[bytes], bytes]) -> None:
        self.lines: list[Scripted] = []
        self._script = iter(script)

    def __call__(self, until_s: float) -> Scripted:
        self.lines.append(Scripted(next(self._script)))
        return self.lines[-1]


def echo(message: bytes) -> bytes:
    return message


def ends(message: bytes) -> bytes:
    raise Ended(RateLimited("room was needed"))


def call(lines: Lines[bytes, memoryview], message: bytes) -> memoryview:
    return lines.call(message, time.monotonic() + DEADLINE_S)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.mark.parametrize(("at_once", "opened"), [(1, 4), (2, 2), (4, 1)])
def test_connections_for_concurrency(pool: ThreadPoolExecutor, at_once: int, opened: int) -> None:
    together = threading.Barrier(4, timeout=DEADLINE_S)
    entered: list[bytes] = []

    def meet(message: bytes) -> bytes:
        entered.append(message)
        together.wait()
        return message

    opener = Opener(*[meet] * 4)
    lines = Lines(opener, at_once)
    for _ in range(3):
        asked: list[Future[memoryview]] = []
        entered.clear()
        for message in ABCD:
            asked.append(pool.submit(call, lines, message))
            # Two that find no room at the same moment would open a line each.
            wait_until(lambda: message in entered)  # noqa: B023
        assert sorted(bytes(one.result(DEADLINE_S)) for one in asked) == ABCD
    assert len(opener.lines) == opened


ABCD = [b"a", b"b", b"c", b"d"]


def test_request_is_resent_in_the_time_there_is_when_its_kept_connection_ends() -> None:
    opener = Opener(echo, echo)
    lines = Lines(opener, 1)
    call(lines, b"a")
    kept = opener.lines[0]
    kept.behave = ends
    assert bytes(call(lines, b"b")) == b"b"
    fresh = opener.lines[1]
    assert kept.ended.is_set()
    assert not fresh.ended.is_set()
    assert kept.deadlines[1:] == fresh.deadlines


def test_closed_connection_is_not_used() -> None:
    def expires(message: bytes) -> bytes:
        raise DeadlineExceeded("too late")

    opener = Opener(echo, echo)
    lines = Lines(opener, 1)
    call(lines, b"a")
    opener.lines[0].is_open = False
    opener.lines[0].behave = expires  # would be raised
    assert bytes(call(lines, b"b")) == b"b"
    assert opener.lines[0].ended.is_set()


def test_error_of_a_fresh_connection_is_raised() -> None:
    opener = Opener(ends, echo, ends)
    lines = Lines(opener, 1)
    with pytest.raises(RateLimited, match="room"):
        call(lines, b"a")
    assert bytes(call(lines, b"b")) == b"b"
    opener.lines[1].behave = ends
    with pytest.raises(RateLimited):
        call(lines, b"c")
    assert len(opener.lines) == 3, "a request is sent at most twice"


@pytest.mark.parametrize("left_s", [DEADLINE_S, 0.0])
def test_sharing_call_is_resent_when_another_is_late(
    pool: ThreadPoolExecutor, left_s: float
) -> None:
    opener = Opener(echo, echo)
    lines = Lines(opener, 2)
    call(lines, b"a")
    shared = opener.lines[0]
    both = threading.Barrier(2, timeout=DEADLINE_S)

    def behave(message: bytes) -> bytes:
        both.wait()
        if message == b"late":
            raise DeadlineExceeded("too late")
        assert shared.ended.wait(DEADLINE_S)
        raise Ended(TeacherLost("the line was ended"))

    shared.behave = behave
    late = pool.submit(call, lines, b"late")
    other = pool.submit(lines.call, b"other", time.monotonic() + left_s)
    with pytest.raises(DeadlineExceeded):
        late.result(DEADLINE_S)
    if left_s:
        assert bytes(other.result(DEADLINE_S)) == b"other"
    else:
        with pytest.raises(DeadlineExceeded):
            other.result(DEADLINE_S)


def test_connection_that_opens_during_close_is_ended(pool: ThreadPoolExecutor) -> None:
    opening, go = threading.Event(), threading.Event()
    line = Scripted(echo)

    def open_line(until_s: float) -> Scripted:
        opening.set()
        assert go.wait(DEADLINE_S)
        return line

    lines = Lines(open_line, 1)
    asked = pool.submit(call, lines, b"a")
    assert opening.wait(DEADLINE_S)
    lines.close()
    go.set()
    with pytest.raises(TeacherLost, match="closed"):
        asked.result(DEADLINE_S)
    assert line.ended.is_set()


def test_renew_ends_connections_once_they_are_idle(pool: ThreadPoolExecutor) -> None:
    inside, go = threading.Event(), threading.Event()

    def hold(message: bytes) -> bytes:
        inside.set()
        assert go.wait(DEADLINE_S)
        return message

    opener = Opener(echo, echo, echo)
    lines = Lines(opener, 1)
    call(lines, b"a")
    opener.lines[0].behave = hold
    held = pool.submit(call, lines, b"b")
    assert inside.wait(DEADLINE_S)
    call(lines, b"c")
    lines.renew()
    assert opener.lines[1].ended.is_set()
    assert not opener.lines[0].ended.is_set()
    assert bytes(call(lines, b"d")) == b"d"
    go.set()
    assert bytes(held.result(DEADLINE_S)) == b"b"
    assert opener.lines[0].ended.is_set()
    assert len(opener.lines) == 3


def test_what_was_asked_in_vain_waits_for_no_garbage_collector() -> None:
    lines = Lines(Opener(ends), 1)
    gc.disable()
    try:
        message = Message()
        gone = weakref.ref(message)
        with suppress(RateLimited):
            lines.call(message, time.monotonic() + DEADLINE_S)  # type: ignore[arg-type]
        del message
        assert gone() is None
    finally:
        gc.enable()


class Message:
    """Can be seen to go, as bytes cannot."""

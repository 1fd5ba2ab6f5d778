"""Lines that are kept: when another is opened, and what becomes of a request whose line ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from edl.errors import DeadlineExceeded, RateLimited, TeacherLost
from edl.proto.clients.lines import Ended, Lines

WAIT_S = 10.0


class Scripted:
    """A line; `behave` is called for each request with its message."""

    def __init__(self, behave: Callable[[bytes], bytes]) -> None:
        self.behave = behave
        self.ended = threading.Event()
        self.is_open = True

    def ask(self, message: bytes, until_s: float) -> memoryview:
        if self.ended.is_set():
            raise Ended(TeacherLost("it was ended"))
        return memoryview(self.behave(message))

    def end(self) -> None:
        self.ended.set()


class Opener:
    """Opens scripted lines; they behave as `script` says, one line after the other."""

    def __init__(self, *script: Callable[[bytes], bytes]) -> None:
        self.lines: list[Scripted] = []
        self._script = iter(script)

    def __call__(self) -> Scripted:
        self.lines.append(Scripted(next(self._script)))
        return self.lines[-1]


def echo(message: bytes) -> bytes:
    return message


def ends(message: bytes) -> bytes:
    raise Ended(RateLimited("room was needed"))


def late(message: bytes) -> bytes:
    raise DeadlineExceeded("too late")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_a_line_is_used_again() -> None:
    opener = Opener(echo)
    lines = Lines(opener, 1)
    for message in (b"a", b"b", b"c"):
        assert bytes(lines.call(message, WAIT_S)) == message
    assert len(opener.lines) == 1


@pytest.mark.parametrize(("at_once", "opened"), [(1, 4), (2, 2), (4, 1)])
def test_there_are_as_many_as_those_who_ask_at_once_need(
    pool: ThreadPoolExecutor, at_once: int, opened: int
) -> None:
    together = threading.Barrier(4, timeout=WAIT_S)

    def meet(message: bytes) -> bytes:
        together.wait()
        return message

    opener = Opener(*[meet] * 4)
    lines = Lines(opener, at_once)
    for _ in range(3):
        assert sorted(bytes(one) for one in pool.map(lambda m: lines.call(m, WAIT_S), ABCD)) == ABCD
    assert len(opener.lines) == opened


ABCD = [b"a", b"b", b"c", b"d"]


def test_a_request_whose_kept_line_ends_goes_over_a_fresh_one() -> None:
    opener = Opener(echo, echo)
    lines = Lines(opener, 1)
    lines.call(b"a", WAIT_S)
    opener.lines[0].behave = ends
    assert bytes(lines.call(b"b", WAIT_S)) == b"b"
    assert opener.lines[0].ended.is_set()
    assert not opener.lines[1].ended.is_set()


def test_one_that_is_known_to_have_ended_is_not_asked() -> None:
    opener = Opener(echo, echo)
    lines = Lines(opener, 1)
    lines.call(b"a", WAIT_S)
    opener.lines[0].is_open = False
    opener.lines[0].behave = late  # would be raised
    assert bytes(lines.call(b"b", WAIT_S)) == b"b"
    assert opener.lines[0].ended.is_set()


def test_a_fresh_line_that_ends_says_why() -> None:
    lines = Lines(Opener(ends, echo), 1)
    with pytest.raises(RateLimited, match="room"):
        lines.call(b"a", WAIT_S)
    assert bytes(lines.call(b"b", WAIT_S)) == b"b"


def test_a_kept_and_a_fresh_one_that_end_are_enough() -> None:
    opener = Opener(echo, ends)
    lines = Lines(opener, 1)
    lines.call(b"a", WAIT_S)
    opener.lines[0].behave = ends
    with pytest.raises(RateLimited):
        lines.call(b"b", WAIT_S)
    assert len(opener.lines) == 2


def test_what_is_late_is_not_sent_again_and_its_line_goes() -> None:
    opener = Opener(echo, echo)
    lines = Lines(opener, 1)
    lines.call(b"a", WAIT_S)
    opener.lines[0].behave = late
    with pytest.raises(DeadlineExceeded):
        lines.call(b"b", WAIT_S)
    assert opener.lines[0].ended.is_set()
    assert bytes(lines.call(b"c", WAIT_S)) == b"c"


def test_who_shares_a_line_with_one_that_is_late_is_sent_again(pool: ThreadPoolExecutor) -> None:
    opener = Opener(echo, echo)
    lines = Lines(opener, 2)
    lines.call(b"a", WAIT_S)
    shared = opener.lines[0]
    second = threading.Event()

    def behave(message: bytes) -> bytes:
        if message == b"late":
            assert second.wait(WAIT_S)
            raise DeadlineExceeded("too late")
        second.set()
        assert shared.ended.wait(WAIT_S)
        raise Ended(TeacherLost("the line was ended"))

    shared.behave = behave
    slow = pool.submit(lines.call, b"late", WAIT_S)
    other = pool.submit(lines.call, b"other", WAIT_S)
    assert bytes(other.result(WAIT_S)) == b"other"
    with pytest.raises(DeadlineExceeded):
        slow.result(WAIT_S)


def test_closing_ends_those_who_wait(pool: ThreadPoolExecutor) -> None:
    waiting = threading.Event()

    def wait(message: bytes) -> bytes:
        waiting.set()
        assert opener.lines[0].ended.wait(WAIT_S)
        raise Ended(RateLimited("its end"))

    opener = Opener(wait)
    lines = Lines(opener, 1)
    asked = pool.submit(lines.call, b"a", WAIT_S)
    assert waiting.wait(WAIT_S)
    lines.close()
    lines.close()
    with pytest.raises(TeacherLost, match="closed"):
        asked.result(WAIT_S)
    with pytest.raises(TeacherLost, match="closed"):
        lines.call(b"b", WAIT_S)
    assert len(opener.lines) == 1


def test_a_line_that_opens_while_all_is_closed_is_ended(pool: ThreadPoolExecutor) -> None:
    opening, go = threading.Event(), threading.Event()
    line = Scripted(echo)

    def open_line() -> Scripted:
        opening.set()
        assert go.wait(WAIT_S)
        return line

    lines = Lines(open_line, 1)
    asked = pool.submit(lines.call, b"a", WAIT_S)
    assert opening.wait(WAIT_S)
    lines.close()
    go.set()
    with pytest.raises(TeacherLost, match="closed"):
        asked.result(WAIT_S)
    assert line.ended.is_set()


def test_the_time_there_is_covers_both_tries() -> None:
    seen: list[float] = []

    class Timed(Scripted):
        def ask(self, message: bytes, until_s: float) -> memoryview:
            seen.append(until_s)
            return super().ask(message, until_s)

    made = iter([Timed(echo), Timed(echo)])
    lines = Lines(lambda: next(made), 1)
    lines.call(b"a", WAIT_S)
    first = lines._kept()
    assert isinstance(first, Timed)
    first.behave = ends
    lines._busy[first] = 0
    before = time.monotonic()
    lines.call(b"b", WAIT_S)
    assert seen[1] == seen[2] <= before + WAIT_S + 1

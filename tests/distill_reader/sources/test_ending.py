"""What was garbage before a fork is collected by the parent, never by the child."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator

import pytest

from edl.distill_reader.sources.ending import close_iterator, leave_garbage_to_the_parent

pytestmark = [pytest.mark.forks, pytest.mark.filterwarnings("ignore:This process")]
CHILD_S = 10.0


class Noted:
    """In a cycle with itself; notes the process that tears it down."""

    def __init__(self, note: Callable[[int], None]) -> None:
        self._note = note
        self.me = self

    def __del__(self) -> None:
        self._note(os.getpid())


def in_child(body: Callable[[], bool]) -> bool:
    """Whether `body` was true in a forked child, which ends then."""
    pid = os.fork()
    if pid == 0:  # pragma: no cover
        os._exit(0 if body() else 1)
    deadline = time.monotonic() + CHILD_S
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
        assert time.monotonic() < deadline, "the child hangs"
        time.sleep(0.005)
    return ended[1] == 0


@pytest.fixture
def torn_down_by() -> Iterator[list[int]]:
    leave_garbage_to_the_parent()
    gc.collect()
    torn: list[int] = []
    Noted(torn.append)
    yield torn
    gc.collect()


def test_a_child_collects_nothing_that_it_inherited(torn_down_by: list[int]) -> None:
    def body() -> bool:
        gc.collect()
        return not torn_down_by and gc.isenabled()

    assert in_child(body)
    gc.collect()
    assert torn_down_by == [os.getpid()]


def test_a_child_collects_what_is_its_own(torn_down_by: list[int]) -> None:
    def body() -> bool:
        own: list[int] = []
        Noted(own.append)
        gc.collect()
        return own == [os.getpid()]

    assert in_child(body)


def test_who_has_switched_the_collector_off_finds_it_off(torn_down_by: list[int]) -> None:
    gc.disable()
    try:
        assert in_child(lambda: not gc.isenabled())
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert in_child(gc.isenabled)
    assert gc.isenabled()


def test_no_iterator_needs_a_way_to_be_closed() -> None:
    close_iterator(iter([1]))
    went: list[str] = []

    def generated() -> Iterator[int]:
        try:
            yield 1
        finally:
            went.append("closed")

    begun = generated()
    next(begun)
    close_iterator(begun)
    assert went == ["closed"]

"""Parts of the server: the table of calls, work on threads."""

from __future__ import annotations

import asyncio
import random
import threading
import weakref

import pytest

from edl.runtime.errors import RateLimited
from edl.teacher.servers.admission import REQUEST_WITHIN_S, AdmittedCall, CallTable
from edl.teacher.servers.servicer import in_thread
from edl.tests.waiting import DEADLINE_S

#: Bytes, where they do not matter.
MOST = 1 << 30


def test_the_client_with_most_calls_without_a_request_makes_room() -> None:
    table = CallTable(4, 3, MOST, MOST)
    good = table.begin("good")
    bad = [table.begin("bad") for _ in range(3)]
    newcomer = table.begin("newcomer")
    assert bad[0].evicted
    assert not good.evicted
    assert not newcomer.evicted


def waits(call: AdmittedCall, nbytes: int) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(call.wait_and_reserve(nbytes))


def test_a_request_waits_for_room_for_its_bytes() -> None:
    """In the share of its client, and in all."""

    async def run() -> None:
        table = CallTable(9, 9, 30, 20)
        first, second, other = (table.begin(owner) for owner in ("a", "a", "b"))
        await first.wait_and_reserve(20)
        task = waits(second, 1)
        await asyncio.sleep(0)
        assert not task.done(), "the share of its client is full"
        other.reserve(10)
        with pytest.raises(RateLimited, match="try again later"):
            table.begin("c").reserve(1)
        first.request_received(5)
        await asyncio.wait_for(task, DEADLINE_S)
        table.begin("c").reserve(14)

    asyncio.run(run())


def test_an_idle_stream_makes_room_for_bytes() -> None:
    """The oldest one, of the client whose share is full, or of the one that has most of them."""

    async def run() -> None:
        table = CallTable(9, 9, 50, 30)
        streams = [table.begin("a", is_stream=True) for _ in range(3)]
        lone = table.begin("b", is_stream=True)
        for stream in (*streams, lone):
            await stream.wait_and_reserve(10)
        streams[0].request_received()
        await table.begin("a").wait_and_reserve(10)
        assert [one.evicted for one in streams] == [False, True, False]
        await table.begin("c").wait_and_reserve(20)
        assert [one.evicted for one in (*streams, lone)] == [False, True, True, False]

    asyncio.run(run())


def test_a_call_that_owes_its_request_for_a_second_makes_room_for_bytes() -> None:
    """Nobody shuts others out by calls that send nothing."""
    now = [0.0]

    async def run() -> None:
        table = CallTable(9, 9, 40, 20, clock=lambda: now[0])
        silent = [table.begin("a") for _ in range(2)]
        for call in silent:
            await call.wait_and_reserve(10)
        task = waits(table.begin("a"), 10)
        await asyncio.sleep(0)
        assert not task.done(), "their requests may be on their way"
        now[0] = REQUEST_WITHIN_S
        await asyncio.wait_for(task, DEADLINE_S)
        assert [one.evicted for one in silent] == [True, False]

    asyncio.run(run())


def test_a_stream_has_memory_for_its_requests_in_work_and_the_next_one() -> None:
    async def run() -> None:
        table = CallTable(9, 9, 25, 25)
        stream, other = table.begin("a", is_stream=True), table.begin("b")
        await stream.wait_and_reserve(10)
        stream.request_received()
        stream.bytes_in_work = 8
        await stream.wait_and_reserve(10)
        assert stream.nbytes == 18
        other.reserve(7)
        stream.bytes_in_work = 18
        second = waits(stream, 10)
        await asyncio.sleep(0)
        assert not second.done()
        stream.bytes_in_work = 5  # the first one is answered
        stream.keep_reserved(10)
        await asyncio.wait_for(second, DEADLINE_S)
        assert stream.nbytes == 15
        stream.bytes_in_work = 9
        stream.keep_reserved(10)
        assert stream.nbytes == 15, "more is reserved by waiting only"

    asyncio.run(run())


def test_a_stream_that_becomes_idle_makes_room_for_who_waits() -> None:
    async def run() -> None:
        table = CallTable(9, 9, 10, 10)
        stream = table.begin("a", is_stream=True)
        await stream.wait_and_reserve(10)
        stream.request_received()
        task = waits(table.begin("a"), 10)
        await asyncio.sleep(0)
        assert not task.done()
        stream.mark_idle()
        await asyncio.wait_for(task, DEADLINE_S)
        assert stream.evicted

    asyncio.run(run())


class Owner(str):
    """One that a weak reference may be had of."""


def test_limits_hold_and_ended_calls_are_forgotten(rng: random.Random) -> None:
    table, owners = CallTable(12, 5, MOST, MOST), [Owner(name) for name in "abcd"]
    held: list[AdmittedCall] = []
    for _ in range(5000):
        action = rng.random()
        if action < 0.5:
            try:
                held.append(table.begin(rng.choice(owners)))
            except RateLimited:
                assert not any(call.evicted for call in held)
        elif held and action < 0.7:
            rng.choice(held).request_received(rng.randrange(100))
        elif held:
            held.pop(rng.randrange(len(held))).end()
        for call in [call for call in held if call.evicted]:
            held.remove(call)
            call.end()
        assert len(table) == len(held) <= 12
        assert max(sum(c.owner == o for c in held) for o in owners) <= 5
    for call in held:
        call.end()
    assert len(table) == 0
    known = [weakref.ref(owner) for owner in owners]
    del held, owners, call
    assert [owner() for owner in known] == [None] * 4


def test_a_cancelled_task_waits_for_its_thread() -> None:
    inside, go = threading.Event(), threading.Event()
    ended = []

    def work() -> None:
        inside.set()
        go.wait(DEADLINE_S)
        ended.append(True)

    async def run() -> None:
        task = asyncio.create_task(in_thread(work))
        await asyncio.to_thread(inside.wait, DEADLINE_S)
        for _ in range(2):  # a server that stops cancels once more
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended

    asyncio.run(run())

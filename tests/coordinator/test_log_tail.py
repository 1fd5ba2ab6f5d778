"""What a watcher of the log hears, when it is too slow, and when its manager ends."""

from __future__ import annotations

import asyncio

import pytest

from edl.coordinator.registry import LogEntry, connect
from edl.coordinator.service import log_tail
from edl.coordinator.service.log_tail import Listener, LogTail
from edl.errors import RateLimited, UnavailableError


def entry(number: int) -> LogEntry:
    return LogEntry("registered", "t1", "t1 came", id=f"{number}-0")


def test_what_came_is_heard_before_the_end() -> None:
    async def hear() -> list[str]:
        listener = Listener("s")
        listener.put(("s", entry(1)))
        listener.end()
        heard = [(await listener.next())[1].id]
        with pytest.raises(UnavailableError, match="ask another"):
            await listener.next()
        return heard

    assert asyncio.run(hear()) == ["1-0"]


def test_a_watcher_that_is_far_behind_is_told_to_begin_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_tail, "_BEHIND", 3)

    async def fall_behind() -> None:
        listener = Listener("s")
        for number in range(4):
            listener.put(("s", entry(number)))
        listener.end()
        with pytest.raises(RateLimited, match="begin again"):
            await listener.next()

    asyncio.run(fall_behind())


def test_a_manager_that_ends_sends_its_watchers_away() -> None:
    async def end() -> None:
        tail = LogTail(connect("memory://ends"))
        with tail.listening("s") as one, tail.listening("") as other:
            waiting = [asyncio.create_task(each.next()) for each in (one, other)]
            await asyncio.sleep(0)
            await tail.stop()
            async with asyncio.timeout(5.0):
                found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in found] == [UnavailableError] * 2

    asyncio.run(end())

"""Work on another thread: its outcome, and that nobody leaves before it has ended."""

from __future__ import annotations

import asyncio
import threading

import pytest

from edl.errors import WireError
from edl.teacher.in_thread import in_thread

WAIT_S = 20.0


def test_what_it_gives_or_raises_comes_back() -> None:
    def work(fails: bool) -> int:
        if fails:
            raise WireError("no")
        return threading.get_ident()

    assert asyncio.run(in_thread(work, False)) != threading.get_ident()
    with pytest.raises(WireError):
        asyncio.run(in_thread(work, fails=True))


def test_who_is_cancelled_waits_for_its_end() -> None:
    inside, go = threading.Event(), threading.Event()
    ended = []

    def work() -> None:
        inside.set()
        go.wait(WAIT_S)
        ended.append(True)

    async def run() -> None:
        task = asyncio.create_task(in_thread(work))
        await asyncio.to_thread(inside.wait, WAIT_S)
        for _ in range(2):  # a server that stops cancels once more
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended

    asyncio.run(run())

"""Coroutines that begin where they are called."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from edl.teacher.front.begun import begin


def test_what_waits_for_nothing_is_there_at_once() -> None:
    async def work() -> int:
        return 3

    async def main() -> None:
        assert begin(work()) == 3

    asyncio.run(main())


def test_what_waits_goes_on_as_a_task() -> None:
    async def main() -> None:
        steps = []
        gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def work() -> int:
            steps.append("begun")
            steps.append(str(await gate))
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
            async with asyncio.timeout(10):
                await asyncio.sleep(0)
            return 3

        task = begin(work())
        assert isinstance(task, asyncio.Task)
        assert steps == ["begun"]
        gate.set_result(7)
        assert await task == 3
        assert steps == ["begun", "7"]

    asyncio.run(main())


def test_what_only_lets_others_go_first_goes_on() -> None:
    async def main() -> None:
        async def work() -> int:
            await asyncio.sleep(0)
            return 3

        task = begin(work())
        assert isinstance(task, asyncio.Task)
        assert await task == 3

    asyncio.run(main())


def test_an_error_is_raised_where_the_result_would_be() -> None:
    async def work() -> int:
        raise KeyError("no")

    async def waits_first() -> int:
        await asyncio.sleep(0)
        return await work()

    async def main() -> None:
        with pytest.raises(KeyError):
            begin(work())
        task = begin(waits_first())
        assert isinstance(task, asyncio.Task)
        with pytest.raises(KeyError):
            await task

    asyncio.run(main())


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_task_that_is_cancelled_cancels_what_it_waits_for(steps: int) -> None:
    async def main() -> None:
        gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        ended = []

        async def work() -> int:
            try:
                return await gate
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        task = begin(work())
        assert isinstance(task, asyncio.Task)
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gate.cancelled()
        assert ended == ["cancelled"]

    asyncio.run(main())


def test_what_a_cancelled_one_held_is_free_without_the_garbage_collector() -> None:
    class Held:
        pass

    async def work(held: Held, gate: asyncio.Future[None]) -> None:
        await gate

    async def main() -> None:
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        held = Held()
        is_there = weakref.ref(held)
        task = begin(work(held, gate))
        del held
        assert isinstance(task, asyncio.Task)
        task.cancel()
        await asyncio.wait([task])
        del task
        assert is_there() is None

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


def test_one_that_is_never_gone_on_with_is_closed() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("closed")

    async def main() -> None:
        assert isinstance(begin(work()), asyncio.Task)

    asyncio.run(main())
    assert ended == ["closed"]

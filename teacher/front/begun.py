"""A coroutine that begins where it is called, and is made a task only if it has to wait."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

_T = TypeVar("_T")


def begin(work: Coroutine[Any, Any, _T]) -> _T | asyncio.Task[_T]:
    """What `work` returns, if it waits for nothing; else the task that goes on with it.

    It must not ask for its own task before it waits, as `asyncio.timeout` does.

    Raises:
        Exception: what `work` raises before it waits.
    """
    try:
        waits_for = work.send(None)
    except StopIteration as end:
        value: _T = end.value
        return value
    return asyncio.get_running_loop().create_task(_Begun(work, waits_for))


class _Begun(Coroutine[Any, Any, _T]):
    """What is left of a coroutine that has begun, for a task to go on with.

    Args:
        work: the coroutine.
        waits_for: the future that wakes it; None: it only lets others go first.
    """

    def __init__(self, work: Coroutine[Any, Any, _T], waits_for: asyncio.Future[Any] | None):
        self._work = work
        self._waits_for = waits_for
        self._handed_on = False

    def send(self, value: Any) -> Any:
        if self._handed_on:
            return self._work.send(value)
        self._handed_on = True
        waits_for, self._waits_for = self._waits_for, None
        return waits_for

    def throw(self, *raised: Any) -> Any:
        if not self._handed_on and (waits_for := self.send(None)) is not None:
            waits_for.cancel()  # as the task would have done, had it known of it
        try:
            return self._work.throw(*raised)
        finally:
            # The error knows this frame: without this they would wait for the garbage collector,
            # and the memory that the request lies in with them.
            del raised

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, _T]:
        raise TypeError("this is for a task")

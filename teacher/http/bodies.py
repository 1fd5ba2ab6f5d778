"""The body of a request: so large at most, and within so much time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

import numpy as np
from starlette.requests import Request

from ...errors import RateLimited, RetryableError
from ..front.calls import EVICTED, Call, CallTable, expire
from ..refusals import TooLarge
from .statuses import WrongKind

#: To which what stands in a body is aligned, where that can be.
_ALIGNED: Final = 64


class Body:
    """A body that is received into the memory that it stays in; lives in an event loop.

    Whoever fills it asks for `room`, and says what came. There is no memory for it until somebody
    wants it kept; what comes without is thrown away.

    Args:
        nbytes: that will come.

    Attributes:
        left: bytes that have not come yet.
    """

    def __init__(self, nbytes: int) -> None:
        self.left = nbytes
        self._arrived: asyncio.Future[None] | None = None
        self._memory: memoryview | None = None

    def keep(self, aligned_at: int) -> None:
        """Have memory, before anything has come, in which byte `aligned_at` is aligned.

        Its pages are taken as they fill, or are those of one before, that nobody views any more:
        `proto/allocator.py` has them kept.

        Raises:
            MemoryError: there is not so much.
        """
        whole = np.empty(self.left + _ALIGNED, np.uint8)
        begin = -(whole.__array_interface__["data"][0] + aligned_at) % _ALIGNED
        self._memory = whole[begin : begin + self.left].data

    def room(self, elsewhere: memoryview) -> memoryview:
        """Where the next of it is to go; `elsewhere` is where nobody looks."""
        if self._memory is None:
            return elsewhere[: self.left]
        return self._memory[len(self._memory) - self.left :]

    def came(self, nbytes: int) -> None:
        """So much more is in `room`."""
        self.left -= nbytes
        if not self.left and self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def take_in(self, data: memoryview) -> memoryview:
        """Take what has been received elsewhere; gives back what is of the next request."""
        mine = data[: self.left]
        if len(mine):
            if self._memory is not None:
                self.room(mine)[: len(mine)] = mine
            self.came(len(mine))
        return data[len(mine) :]

    async def whole(self) -> memoryview:
        """All of it, once it is there; read-only. It is forgotten here."""
        if self.left:
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        assert self._memory is not None
        memory, self._memory = self._memory, None
        return memory.toreadonly()

    def forget(self) -> None:
        """Nobody wants it any more: what still comes is thrown away."""
        self._memory = None


@contextlib.asynccontextmanager
async def in_time(calls: CallTable, call: Call, within_s: float) -> AsyncIterator[None]:
    """Around the receiving of a body.

    Args:
        calls: holds the call, which owes its request until this ends well.
        call: of this request.
        within_s: seconds from now.

    Raises:
        RetryableError: it did not come in time.
        RateLimited: the call had to make room for another one.
    """
    try:
        async with asyncio.timeout(0.0 if call.evicted else within_s) as limit:
            call.on_evicted = lambda: expire(limit)
            yield
    except TimeoutError:
        if call.evicted:
            raise RateLimited(EVICTED) from None
        raise RetryableError(
            f"the request did not come within {within_s:g} s of its head"
        ) from None
    calls.received(call)


async def read_body(
    request: Request, calls: CallTable, call: Call, *, most_bytes: int, within_s: float
) -> memoryview:
    """All of a body that comes through starlette, once its sender is known.

    Args:
        request: whose body.
        calls: as of `in_time`.
        call: as of `in_time`.
        most_bytes: that are taken.
        within_s: as of `in_time`.

    Raises:
        TooLarge: it is, or says that it is going to be.
        RetryableError: it did not come in time.
        RateLimited: there is no room for it, or the call had to make room for another one.
        WrongKind: it is compressed.
        starlette's ClientDisconnect: nobody waits for an answer any more.
    """
    if (coding := request.headers.get("content-encoding", "identity").lower()) != "identity":
        raise WrongKind(f"bodies are taken as they are, not with Content-Encoding {coding:.40}")
    length = request.headers.get("content-length", "")
    announced = int(length[:20]) if length.isdigit() else most_bytes
    check_size(announced, most_bytes)
    calls.announced(call, announced)
    body = bytearray()
    async with in_time(calls, call, within_s):
        async for piece in request.stream():
            if len(body) + len(piece) > most_bytes:
                raise _too_large("more", most_bytes)
            body += piece
    calls.received(call, len(body))
    return memoryview(body).toreadonly()


def check_size(announced: int, most_bytes: int) -> None:
    """Raise TooLarge where a body is going to be."""
    if announced > most_bytes:
        raise _too_large(str(announced), most_bytes)


def _too_large(size: str, most_bytes: int) -> TooLarge:
    return TooLarge(f"the body is larger than max ({size} vs. {most_bytes} bytes)")

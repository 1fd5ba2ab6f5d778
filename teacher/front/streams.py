"""`ModelStreamInfer`: many requests over one call, answered in their order, each by itself.

A stream that waits for its next request owes one, as a unary call does that has sent nothing: where
there is no room it is ended first. While requests of it are answered, it is not. What is wrong with
one request is said in its answer's `error_message`, and the stream goes on. Of each stream two
requests are in work at a time, so that one travels while the model has the other; no more are read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Protocol

from ...errors import EdlError, RateLimited, TeacherLost
from ...proto.stream_answers import AT_ONCE, FAREWELL
from ..config import ServerConfig
from ..refusals import TooLarge
from ..shared_memory.visitors import Visitor
from .answering import Infer, answer
from .calls import EVICTED, NO_ROOM, Call, CallTable, expire


class Conversation(Protocol):
    """What a stream is to who serves it: a context of gRPC's, or what behaves like one."""

    async def read(self) -> Any:
        """The next request; anything but bytes: there will be none."""

    async def write(self, answer: bytes, /) -> None: ...

    def peer(self) -> str: ...

    def knows_farewells(self) -> bool:
        """Whether its caller, told that the server takes leave, ends its side by itself."""


class Streams:
    """The streams of one server; lives in its event loop.

    Args:
        calls: where streams have their places, among other calls.
        config: the limits.
        refused: told of each request that is not answered.
    """

    def __init__(
        self, calls: CallTable, config: ServerConfig, refused: Callable[[EdlError], None]
    ) -> None:
        self._calls = calls
        self._max_message_bytes, self._receive_s = config.max_message_bytes, config.receive_s
        self._refused = refused
        self._open: set[_Stream] = set()
        self._leaving = False
        self._farewells: set[asyncio.Task[None]] = set()

    async def serve(self, visitor: Visitor, context: Conversation, infer: Infer) -> None:
        """Answer what comes over one stream by `infer`, until its caller ends it.

        Raises:
            RateLimited: there is no room for it, or it had to make room.
            TeacherLost: this teacher takes leave.
        """
        call = self._calls.begin(visitor.owner, is_stream=True)
        stream = _Stream(context, call, self._calls, infer, self._refused)
        self._open.add(stream)
        try:
            if not self._leaving:
                await self._wait_for_room(call)
                await stream.serve()
        finally:
            self._open.discard(stream)
            self._calls.end(call)
            call.on_evicted = _nothing  # or the call and its stream would know each other
        if self._leaving:
            raise TeacherLost("this teacher takes leave: go on with another one")

    async def _wait_for_room(self, call: Call) -> None:
        """It keeps room for one request as long as it is open."""
        hang_up = call.on_evicted
        try:
            async with asyncio.timeout(self._receive_s) as limit:
                call.on_evicted = lambda: expire(limit)
                await self._calls.expect(call, self._max_message_bytes)
        except TimeoutError:
            raise RateLimited(EVICTED if call.evicted else NO_ROOM) from None
        finally:
            call.on_evicted = hang_up

    def leave(self, receive_s: float) -> None:
        """Each stream ends once what it has sent is answered.

        Args:
            receive_s: how long a request may still take to arrive, of callers that have been told.
        """
        self._leaving = True
        for stream in self._open:
            farewell = asyncio.create_task(stream.leave(receive_s))
            self._farewells.add(farewell)
            farewell.add_done_callback(self._farewells.discard)


class _Stream:
    """One stream, and the workers of it: each reads a request, has it answered, and writes that."""

    def __init__(
        self,
        context: Conversation,
        call: Call,
        calls: CallTable,
        infer: Infer,
        refused: Callable[[EdlError], None],
    ) -> None:
        self._context = context
        self._call = call
        self._calls = calls
        self._infer = infer
        self._refused = refused
        self._to_read, self._to_write = asyncio.Lock(), asyncio.Lock()
        self._done = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._last = _written()  # done once the latest request that was read is answered
        self._in_work = 0
        self._over = False
        call.on_evicted = self.hang_up

    def hang_up(self) -> None:
        """Read no more."""
        self._over = True
        if self._reader is not None:
            self._reader.cancel()

    async def leave(self, receive_s: float) -> None:
        """Read no more, where the caller knows of farewells only what it has sent before it hears.

        Raises nothing: a caller that is gone needs no farewell.
        """
        if self._context.knows_farewells():
            with contextlib.suppress(Exception):
                async with self._to_write:
                    await self._context.write(FAREWELL)
                await asyncio.wait_for(self._done.wait(), receive_s)
        self.hang_up()

    async def serve(self) -> None:
        workers = [asyncio.create_task(self._work()) for _ in range(AT_ONCE)]
        try:
            await asyncio.gather(*workers)
        finally:
            # What a worker raised knows this frame: emptied, so that nothing here knows itself, and
            # no request waits for the garbage collector.
            while workers:
                workers.pop().cancel()
            self._done.set()
        if self._call.evicted:
            raise RateLimited(EVICTED)

    async def _work(self) -> None:
        while True:
            async with self._to_read:
                data = await self._read()
                if data is None:
                    return
                before, self._last = self._last, asyncio.get_running_loop().create_future()
                mine = self._last
            said = await answer(self._infer, self._refused, data)
            del data  # it is large
            await before
            async with self._to_write:
                await self._context.write(said)
            del said  # not to be held until the next one
            mine.set_result(None)
            self._in_work -= 1
            if not self._in_work:
                self._calls.owes(self._call)

    async def _read(self) -> bytes | None:
        """The next request; None: there will be none."""
        if self._over:
            return None
        self._reader = asyncio.current_task()
        try:
            data = await self._context.read()
        except asyncio.CancelledError:
            if not self._over:
                raise
            return None
        finally:
            self._reader = None
        if isinstance(data, bytes):
            self._calls.received(self._call)
            self._in_work += 1
            return data
        self._over = True
        if data is not None and not self._context.peer():
            # gRPC itself has refused a message above the limit, and has forgotten the peer; one
            # that hung up it still knows.
            self._refused(TooLarge("a request of a stream is larger than max"))
            raise asyncio.CancelledError
        return None


def _nothing() -> None:
    """For a call that is over."""


def _written() -> asyncio.Future[None]:
    """As behind an answer that is written."""
    written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    written.set_result(None)
    return written

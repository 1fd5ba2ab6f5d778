"""The door for callers on this host: `ModelStreamInfer` over a Unix socket.

Whoever registers memory is invited; see `proto/doors.py`. A ticket stands for what its bearer has
shown by that call, which is held against the gate again with each request: so who is let in no more
by gRPC is not by the door either.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
from collections.abc import Awaitable, Callable
from typing import Final

from ...errors import EdlError
from ...proto.doors import LENGTH, TICKET_BYTES, Invitation
from ...proto.stream_answers import failed
from ..refusals import TooLarge
from .callers import Callers, Shown
from .streams import Streams

log = logging.getLogger(__name__)

#: Callers that may be invited at once; the one that was invited longest ago makes room.
_TICKETS: Final = 1024
#: Connections that have not said their ticket yet; one more is closed.
_STRANGERS: Final = 64

#: Has the request of somebody answered, both serialised.
Infer = Callable[[bytes, Shown], Awaitable[bytes]]


class Door:
    """One teacher's; lives in one event loop.

    Args:
        callers: who may ask.
        streams: where connections have their places, as streams of gRPC's do.
        infer: answers one request.
        max_message_bytes: of one request.
        receive_s: seconds that a ticket may take to come.
    """

    def __init__(
        self,
        callers: Callers,
        streams: Streams,
        infer: Infer,
        max_message_bytes: int,
        receive_s: float,
    ) -> None:
        self._callers = callers
        self._streams = streams
        self._infer = infer
        self._max_message_bytes = max_message_bytes
        self._receive_s = receive_s
        self._name = f"edl-teacher-{secrets.token_hex(16)}"
        self._shown: dict[str, Shown] = {}  # by ticket
        self._server: asyncio.Server | None = None
        self._strangers = 0
        self._inside: set[asyncio.Task[None]] = set()

    def invite(self, shown: Shown) -> tuple[tuple[str, str], ...]:
        """Metadata that tells a caller where the door is; none where there is no door."""
        if self._server is None:
            return ()
        invitation = Invitation.to(self._name)
        self._shown[invitation.ticket] = shown
        if len(self._shown) > _TICKETS:
            del self._shown[next(iter(self._shown))]
        return invitation.metadata()

    async def open(self) -> None:
        """Let callers in from now on, where the system has such sockets."""
        if sys.platform == "linux":
            self._server = await asyncio.start_unix_server(self._enter, path=f"\0{self._name}")

    async def close(self, grace_s: float) -> None:
        """Let nobody in; wait up to `grace_s` for those inside, whom `streams` has sent away."""
        if self._server is not None:
            self._server.close()
        if self._inside:
            await asyncio.wait(self._inside, timeout=grace_s)
        for task in self._inside:
            task.cancel()

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._inside.add(task)
        try:
            if (shown := await self._ticket(reader)) is not None:
                await self._serve(shown, _Conversation(reader, writer, self._max_message_bytes))
        except (EdlError, OSError, EOFError) as error:
            log.debug("a caller at the door is gone: %s", error)
        finally:
            self._inside.discard(task)
            writer.close()

    async def _ticket(self, reader: asyncio.StreamReader) -> Shown | None:
        """What the bearer of the ticket that comes has shown; None: there is no such ticket."""
        if self._strangers >= _STRANGERS:
            return None
        self._strangers += 1
        try:
            async with asyncio.timeout(self._receive_s):
                said = await reader.readexactly(TICKET_BYTES)
        finally:
            self._strangers -= 1
        return self._shown.get(said.decode("ascii", "replace"))

    async def _serve(self, shown: Shown, conversation: _Conversation) -> None:
        async def infer(data: bytes) -> bytes:
            return await self._infer(data, shown)

        try:
            await self._streams.serve(self._callers.student(shown), conversation, infer)
        except EdlError as error:
            if not conversation.heard:  # it is not let in: its first request is answered so
                await conversation.write(failed(error, ""))
            raise


class _Conversation:
    """One connection as `Streams` sees it; `heard` says whether a request has come."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_message_bytes: int
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._max_message_bytes = max_message_bytes
        self.heard = False

    async def read(self) -> bytes:
        """The next request; raises EOFError once the caller is gone."""
        (nbytes,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        self.heard = True
        if nbytes > self._max_message_bytes:
            raise TooLarge(
                f"a request is larger than max ({nbytes} vs. {self._max_message_bytes}):"
                " split the batch"
            )
        return await self._reader.readexactly(nbytes)

    async def write(self, answer: bytes) -> None:
        self._writer.writelines((LENGTH.pack(len(answer)), answer))
        await self._writer.drain()

    def peer(self) -> str:
        """As of a call of gRPC's."""
        return "unix:"

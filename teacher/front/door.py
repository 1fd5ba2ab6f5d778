"""The door for callers on this host: `ModelStreamInfer` over a Unix socket.

Whoever registers memory is invited; see `proto/doors.py`. A ticket stands for what its bearer has
shown by that call, which is held against the gate again with each request. It opens while its owner
has memory registered here, to processes of users that could have registered it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
from collections.abc import Awaitable, Callable
from typing import Final

from ...errors import EdlError
from ...proto.doors import LENGTH, TICKET_BYTES, WELCOME, Invitation, user_behind
from ...proto.stream_answers import failed
from ..config import ServerConfig
from ..refusals import TooLarge
from ..shared_memory.regions import SharedMemory
from .callers import Callers, Shown
from .streams import Streams

log = logging.getLogger(__name__)

#: Tickets of one owner of memory; that of the oldest invitation makes room.
_TICKETS: Final = 64
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
        config: the limits.
        memory: what callers have registered.
    """

    def __init__(
        self,
        callers: Callers,
        streams: Streams,
        infer: Infer,
        config: ServerConfig,
        memory: SharedMemory,
    ) -> None:
        self._callers = callers
        self._streams = streams
        self._infer = infer
        self._config = config
        self._memory = memory
        self._name = f"edl-teacher-{secrets.token_hex(16)}"
        self._shown: dict[str, dict[str, Shown]] = {}  # owner -> ticket -> what it stands for
        self._server: asyncio.Server | None = None
        self._strangers = 0
        self._inside: set[asyncio.Task[None]] = set()

    def invite(self, shown: Shown) -> tuple[tuple[str, str], ...]:
        """Metadata that tells a caller where the door is; none where there is no door."""
        if self._server is None:
            return ()
        invitation = Invitation.to(self._name)
        mine = self._shown.setdefault(self._callers.student(shown).owner, {})
        mine[invitation.ticket] = shown
        if len(mine) > _TICKETS:
            del mine[next(iter(mine))]
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
            if (shown := await self._ticket(reader, writer)) is not None:
                await self._serve(shown, _Conversation(reader, writer, self._config))
        except (EdlError, OSError, EOFError) as error:
            log.debug("a caller at the door is gone: %s", error)
        except asyncio.CancelledError:
            log.debug("a caller at the door was sent away")  # by `close`: nobody waits for this
        finally:
            self._inside.discard(task)
            writer.close()

    async def _ticket(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Shown | None:
        """What the bearer of the ticket that comes has shown; None: it is not let in."""
        if self._strangers >= _STRANGERS or not _may_come(writer):
            return None
        self._strangers += 1
        try:
            async with asyncio.timeout(self._config.receive_s):
                said = (await reader.readexactly(TICKET_BYTES)).decode("ascii", "replace")
        finally:
            self._strangers -= 1
        shown = next((mine[said] for mine in self._shown.values() if said in mine), None)
        if shown is None:
            return None
        visitor = self._callers.student(shown)
        if not self._memory.status(visitor):
            self._shown.pop(visitor.owner, None)  # who shares nothing has no business here
            return None
        writer.write(WELCOME)
        return shown

    async def _serve(self, shown: Shown, conversation: _Conversation) -> None:
        async def infer(data: bytes) -> bytes:
            return await self._infer(data, shown)

        try:
            await self._streams.serve(self._callers.student(shown), conversation, infer)
        except EdlError as error:
            if not conversation.heard:  # there is no room: its first request is answered so
                await conversation.write(failed(error, ""))
            raise


def _may_come(writer: asyncio.StreamWriter) -> bool:
    """Whether the user behind a connection could have shared memory with this process."""
    return os.geteuid() == 0 or user_behind(writer.get_extra_info("socket")) in (0, os.geteuid())


class _Conversation:
    """One connection as `Streams` sees it; `heard` says whether a request has come."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, config: ServerConfig
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._config = config
        self.heard = False

    async def read(self) -> bytes:
        """The next request; raises EOFError once the caller is gone."""
        (nbytes,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        self.heard = True
        if nbytes > self._config.max_message_bytes:
            raise TooLarge(
                f"a request is larger than max ({nbytes} vs. {self._config.max_message_bytes}):"
                " split the batch"
            )
        return await self._reader.readexactly(nbytes)

    async def write(self, answer: bytes) -> None:
        """Write an answer, within the time that a request may take to arrive.

        Raises:
            TimeoutError: the caller reads nothing.
        """
        self._writer.write(b"".join((LENGTH.pack(len(answer)), answer)))
        try:
            async with asyncio.timeout(self._config.receive_s):
                await self._writer.drain()
        except TimeoutError:
            self._writer.transport.abort()
            raise

    def peer(self) -> str:
        """As of a call of gRPC's."""
        return "unix:"

    def knows_farewells(self) -> bool:
        """No: what it has sent is here at once, and it sees that it has ended before it asks."""
        return False

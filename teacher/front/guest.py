"""One connection at the door: shows its ticket, asks, and is answered in the order of its requests.

It is served where its bytes come in: a request that waits for nothing is answered at once, without
a task. As of a stream, two requests are in work at a time, and what was answered is, too, until it
has gone out; while there are two, no more are read.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from typing import Any, Final, Protocol

from ...errors import EdlError, RateLimited
from ...proto.doors import LENGTH, TICKET_BYTES, WELCOME
from ...proto.stream_answers import AT_ONCE, failed
from ..config import ServerConfig
from ..refusals import TooLarge
from .answering import Infer, answer
from .begun import begin
from .calls import Call, CallTable
from .frames import Frames

log = logging.getLogger(__name__)

#: The transport says at once when something does not go out.
_NOTHING: Final = 0
#: Answers that the system keeps until they are read, as far as it lets us: two of 128 KB, which it
#: does not by default, go out without the caller being waited for between them.
_SEND_BYTES: Final = 1 << 20


class Host(Protocol):
    """Whose guests they are."""

    def knocked(self, guest: Guest, connection: Any) -> bool:
        """Somebody is there, who has shown nothing yet; False: to be sent away."""

    def let_in(self, guest: Guest, ticket: str, connection: Any) -> tuple[str, Infer] | None:
        """A ticket is shown: whose it is, and what answers its bearer's requests.

        Returns:
            None: it is not let in.
        """

    def refused(self, error: EdlError, /) -> None:
        """A request is not answered."""

    def gone(self, guest: Guest) -> None:
        """A connection is over."""


class Guest(asyncio.BufferedProtocol):
    """Lives in the event loop.

    Args:
        host: whose door it is.
        calls: where it has its place, among other calls.
        config: the limits.
    """

    def __init__(self, host: Host, calls: CallTable, config: ServerConfig) -> None:
        self._host = host
        self._calls = calls
        self._receive_s = config.receive_s
        self._frames = Frames(config.max_message_bytes)
        self._infer: Infer | None = None
        self._call: Call | None = None
        #: Answers in order, and of how many bytes their requests are.
        self._in_work: deque[tuple[bytes | asyncio.Task[bytes], int]] = deque()
        self._held_bytes = 0  # of all these requests
        self._stuck = False  # something does not go out
        self._over = False  # it is asked nothing more
        self._late: asyncio.TimerHandle | None = None

    def leave(self) -> None:
        """End the connection once what has been asked is answered."""
        self._over = True
        if self._infer is None:
            self.abort()
        else:
            self._go_on()

    def abort(self) -> None:
        """End it now."""
        self._transport.abort()

    # --- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(_NOTHING)
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        if self._host.knocked(self, connection):
            self._end_unless_done_in_time()
        else:
            self.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._frames.came(nbytes)
        if self._infer is None:
            self._enter()
        else:
            self._go_on()

    def pause_writing(self) -> None:
        self._stuck = True
        self._end_unless_done_in_time()

    def resume_writing(self) -> None:
        self._stuck = False
        self._done_in_time()
        self._owe()
        self._go_on()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            log.debug("a caller at the door is gone: %s", error)
        self._over = True
        self._done_in_time()
        while self._in_work:
            if isinstance(work := self._in_work.popleft()[0], asyncio.Task):
                work.cancel()
        self._infer = None
        if (call := self._call) is not None:
            self._call = None
            call.on_evicted = _nothing  # or the call and its guest would know each other
            self._calls.end(call)
        self._host.gone(self)

    # ---

    def _enter(self) -> None:
        if self._over or (said := self._frames.take(TICKET_BYTES)) is None:
            return
        self._done_in_time()
        connection = self._transport.get_extra_info("socket")
        found = self._host.let_in(self, said.decode("ascii", "replace"), connection)
        if found is None:
            self.abort()
            return
        owner, self._infer = found
        self._transport.write(WELCOME)
        try:
            self._call = self._calls.begin(owner)
        except EdlError as error:  # there is no room: its first request is answered so
            self._refuse(error)
        else:
            self._call.on_evicted = self.leave
        self._go_on()

    def _go_on(self) -> None:
        """Do what can be done now."""
        while self._has_room():
            assert self._call is not None
            try:
                data = self._frames.message()
                coming = self._frames.announced if data is None else len(data)
                self._calls.announced(self._call, self._held_bytes + coming)
            except (TooLarge, RateLimited) as error:
                self._host.refused(error)
                self._refuse(error)
                break
            if data is None:
                break
            self._take(data)
        if self._over and not self._in_work:
            self._transport.close()  # once all is out
        elif self._has_room() or self._frames.are_empty:  # the end is noticed at once
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _has_room(self) -> bool:
        return not self._over and not self._stuck and len(self._in_work) < AT_ONCE

    def _take(self, data: bytes) -> None:
        assert self._infer is not None
        assert self._call is not None
        if not self._in_work:
            self._calls.received(self._call)
        work = begin(answer(self._infer, self._host.refused, data, _framed))
        self._in_work.append((work, len(data)))
        self._held_bytes += len(data)
        if isinstance(work, asyncio.Task):
            work.add_done_callback(self._answered)
        else:
            self._write()

    def _answered(self, task: asyncio.Task[bytes]) -> None:
        if task.cancelled():
            self.abort()
        else:
            self._write()
            self._go_on()

    def _write(self) -> None:
        """Let out the answers whose turn it is."""
        while self._in_work:
            first, nbytes = self._in_work[0]
            if isinstance(first, asyncio.Task):
                if not first.done() or first.cancelled():
                    return
                first = first.result()
            self._in_work.popleft()
            self._held_bytes -= nbytes
            self._transport.write(first)
        self._owe()

    def _owe(self) -> None:
        """What was asked has been answered: the next request is owed."""
        if self._call is not None and not self._in_work and not self._stuck:
            self._calls.owes(self._call)

    def _refuse(self, error: EdlError) -> None:
        """Nothing more is answered, and why is said."""
        self._over = True
        self._in_work.append((_framed(failed(error, "")), 0))
        self._write()

    def _end_unless_done_in_time(self) -> None:
        self._done_in_time()
        self._late = asyncio.get_running_loop().call_later(self._receive_s, self.abort)

    def _done_in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def _framed(said: bytes) -> bytes:
    return LENGTH.pack(len(said)) + said


def _nothing() -> None:
    """For a call that is over."""

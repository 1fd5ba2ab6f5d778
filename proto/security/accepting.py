"""Accepts connections in an event loop: limits how many there are, and how long a handshake takes.

asyncio's own servers take in connections without a limit, and wait a minute for each handshake.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

#: Seconds that a TLS handshake may take.
HANDSHAKE_S: Final = 10.0
#: Unfinished handshakes at once; for one more, the oldest is ended. asyncio takes 256 KiB for each
#: connection with TLS from its first byte on.
HANDSHAKES: Final = 128
#: Seconds that a handshake has at least, however long it waited before.
_LEAST_S: Final = 0.01
#: Seconds between two attempts to accept while the system refuses, as without descriptors.
_PAUSE_S: Final = 0.1


class Acceptor:
    """Lives in one event loop.

    Args:
        listener: bound and listening; closed by `close`.
        protocol: made for each connection, once its handshake is done.
        tls: None: connections are plain.
        most: connections at once, those included whose handshake is not done.
        standing: how many of them have a protocol now.
        make_room: ends one of these, as `most` is reached; False: none may be ended, and the new
            connection is closed.
    """

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
        *,
        most: int,
        standing: Callable[[], int],
        make_room: Callable[[], bool],
    ) -> None:
        self._listener = listener
        self._protocol = protocol
        self._tls = tls
        self._most = most
        self._standing = standing
        self._make_room = make_room
        self._begun: dict[asyncio.Task[None], None] = {}  # handshakes, the oldest first
        self._accepting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Accept from now on."""
        self._listener.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Accept no more, end handshakes, close the listener. Connections that stand stay."""
        for task in (self._accepting, *self._begun):
            if task is not None:
                task.cancel()
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        refused = False
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError as error:  # no descriptors left, or the peer is gone already
                if not refused:
                    log.warning("no connection can be accepted now: %s", error)
                refused = True
                await asyncio.sleep(_PAUSE_S)
                continue
            refused = False
            if not self._has_room():
                connection.close()
            elif self._tls is None:
                await self._begin(connection)  # which waits for nobody
            else:
                task = loop.create_task(self._begin(connection))
                self._begun[task] = None
                task.add_done_callback(lambda done: self._begun.pop(done, None))
            await asyncio.sleep(0)  # as there may be more in the queue, and others have to go on

    def _has_room(self) -> bool:
        """Whether one more may come, after one has been ended for it if need be."""
        full = len(self._begun) + self._standing() >= self._most
        if len(self._begun) < HANDSHAKES and (not full or self._make_room()):
            return True
        if not self._begun:
            return False
        oldest = next(iter(self._begun))
        del self._begun[oldest]
        oldest.cancel()
        return True

    async def _begin(self, connection: socket.socket) -> None:
        loop, limit_s = asyncio.get_running_loop(), None
        try:
            if self._tls is not None:
                began = loop.time()
                async with asyncio.timeout(HANDSHAKE_S):
                    await _readable(connection)
                limit_s = max(began + HANDSHAKE_S - loop.time(), _LEAST_S)
            await loop.connect_accepted_socket(
                self._protocol, connection, ssl=self._tls, ssl_handshake_timeout=limit_s
            )
        except OSError as error:  # a TimeoutError is one
            connection.close()
            log.debug("a connection was not made: %s", error)
        except asyncio.CancelledError:
            connection.close()
            raise
        except Exception:  # of this connection: others are accepted all the same
            connection.close()
            log.exception("a connection was not made")


async def _readable(connection: socket.socket) -> None:
    """Wait until something has come; it costs nothing but the socket until then."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def came() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(connection, came)
    try:
        await readable
    finally:
        loop.remove_reader(connection)

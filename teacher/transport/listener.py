"""Takes connections of the transport from readers to which it was offered by gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ...coordinator.config import join_address
from ...errors import AccessError, AddressInUse, EdlError
from ...proto.security.https import reloading_context
from ...proto.transport.offer import OFFER, Offer
from ..config import ServerConfig
from ..front.callers import Callers, Shown
from ..front.calls import CallTable
from ..metrics import TeacherMetrics
from ..servicer import Servicer
from ..shared_memory.visitors import user_behind
from .connection import Connection

#: Offers to one caller that are not taken, and to all; the oldest makes room.
_OFFERS_TO_ONE: Final = 64
_OFFERS: Final = 1024
#: Connections that have not proved anything yet; the oldest makes room.
_STRANGERS: Final = 128


@dataclass(frozen=True, slots=True)
class Session:
    """What was offered to whom."""

    offer: Offer
    shown: Shown
    owner: str


class TransportListener:
    """One teacher's; lives in one event loop.

    Args:
        config: the limits, and where to listen.
        callers: who may ask.
        calls: where connections have their places, among other calls.
        servicer: labels batches.
        metrics: told of every request.
        refused: told of every request that is not answered.

    Attributes:
        port: of TCP; 0 before `open`.
    """

    def __init__(
        self,
        config: ServerConfig,
        callers: Callers,
        calls: CallTable,
        servicer: Servicer,
        metrics: TeacherMetrics,
        refused: Callable[[EdlError], None],
    ) -> None:
        self.port = 0
        self.config, self.callers, self.calls = config, callers, calls
        self.servicer, self.metrics, self.refused = servicer, metrics, refused
        self._grpc_port = 0
        self._unix_name = ""
        self._servers: list[asyncio.Server] = []
        self._sessions: dict[bytes, Session] = {}
        self._strangers: dict[Connection, None] = {}
        self._connections: set[Connection] = set()
        self._nobody = asyncio.Event()

    def offer(self, shown: Shown) -> tuple[tuple[str, str], ...]:
        """Metadata beside an answer of gRPC: an offer, to a student that has asked for one."""
        asked = any(key == OFFER for key, _ in shown.metadata or ())
        if not asked or not self._servers or not self.callers.is_student(shown):
            return ()
        owner = self.callers.student(shown).owner
        mine = [name for name, session in self._sessions.items() if session.owner == owner]
        if len(mine) >= _OFFERS_TO_ONE:
            del self._sessions[mine[0]]
        elif len(self._sessions) >= _OFFERS:
            del self._sessions[next(iter(self._sessions))]
        offer = Offer.new(self._grpc_port, self.port, self._unix_name)
        self._sessions[offer.session] = Session(offer, shown, owner)
        return offer.metadata()

    async def bind(self, grpc_port: int) -> None:
        """Listen; nobody is served before `offer` has been asked.

        Raises:
            AddressInUse: another process listens on the port that was asked for.
        """
        self._grpc_port = grpc_port
        loop, config = asyncio.get_running_loop(), self.config
        tls = None if config.security is None else config.security.tls
        context = None if tls is None else reloading_context(tls, ask_clients=tls.ca is not None)
        listening = _listening_socket(config.host, config.transport_port)
        make = partial(Connection, self)
        options: dict[str, Any] = {}
        if isinstance(context, ssl.SSLContext):
            options = {"ssl": context, "ssl_handshake_timeout": config.receive_s}
        self._servers.append(await loop.create_server(make, sock=listening, **options))
        self.port = listening.getsockname()[1]
        if sys.platform == "linux":
            self._unix_name = f"edl-teacher-{secrets.token_hex(16)}"
            path = f"\0{self._unix_name}"
            self._servers.append(await loop.create_unix_server(make, path=path))

    async def close(self, grace_s: float) -> None:
        """Take no connection; wait up to `grace_s` until all requests are answered."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        for connection in list(self._connections):
            connection.leave()
        if self._connections:
            self._nobody.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._nobody.wait(), grace_s)
        for connection in list(self._connections):
            connection.abort()

    # --- told by a connection

    def came(self, connection: Connection) -> None:
        """Somebody is there who has proved nothing yet."""
        self._connections.add(connection)
        if len(self._strangers) >= _STRANGERS:
            next(iter(self._strangers)).abort()
        self._strangers[connection] = None

    def take(self, name: bytes) -> Session | None:
        """The session of that name, if its caller may still ask; it is good for one connection."""
        if (session := self._sessions.pop(name, None)) is None:
            return None
        try:
            self.callers.student(session.shown)
        except AccessError:
            return None
        return session

    def known(self, connection: Connection) -> None:
        """Its proof was right."""
        self._strangers.pop(connection, None)

    def gone(self, connection: Connection) -> None:
        self._strangers.pop(connection, None)
        self._connections.discard(connection)
        if not self._connections:
            self._nobody.set()


def uid_of(connection: Any) -> int | None:
    """The user behind a Unix socket; None for TCP."""
    return user_behind(connection) if connection.family == socket.AF_UNIX else None


def _listening_socket(host: str, port: int) -> socket.socket:
    """A socket bound to where gRPC listens, at another port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    try:
        if family == socket.AF_INET6 and host == "::":
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        return listening
    except OSError as error:
        listening.close()
        address = join_address(host, port)
        raise AddressInUse(f"cannot listen on {address} ({error.strerror})") from None

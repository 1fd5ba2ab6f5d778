"""Accepts connections of the transport from readers that got an offer over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import ssl
from dataclasses import dataclass
from functools import partial
from typing import Final

from ...proto.frames import OFFER_KEY, TransportOffer
from ...proto.security.certificates import reloading_context
from ...proto.security.servers import Acceptor
from ...runtime.addresses import bind_socket
from ...runtime.errors import AccessError
from .callers import CallCredentials
from .servicer import ServerContext
from .transport_connection import ReaderConnection

#: Limits of unused offers to one caller, and to all. At a limit, a new offer replaces the oldest.
_OFFERS_TO_ONE: Final = 64
_OFFERS: Final = 1024
#: Limit of connections that have not proved their offer yet. At it, a new one ends the oldest.
_MAX_UNPROVED: Final = 128
_BACKLOG: Final = 128


@dataclass(frozen=True, slots=True)
class PendingOffer:
    """An offer, with the credentials of its caller and their `CallerIdentity.owner`."""

    offer: TransportOffer
    credentials: CallCredentials
    owner: str


class TransportListener:
    """The listener of one teacher, on TCP and a Unix socket. Used only in one event loop.

    Args:
        context: shared objects; `admission` counts a proved connection as an inference call.

    Attributes:
        port: for TCP; 0 before `bind`.
    """

    def __init__(self, context: ServerContext) -> None:
        self.port = 0
        self.config, self.servicer, self.admission, self.recorder = context
        self._grpc_port = 0
        self._unix_name = ""
        self._acceptors: list[Acceptor] = []
        self._offers: dict[bytes, PendingOffer] = {}
        self._unproved: dict[ReaderConnection, None] = {}
        self._connections: set[ReaderConnection] = set()
        self._all_closed = asyncio.Event()

    def offer(self, credentials: CallCredentials) -> tuple[tuple[str, str], ...]:
        """Return trailing metadata with an offer; () unless a caller with student rights asks."""
        is_requested = any(key == OFFER_KEY for key, _ in credentials.metadata or ())
        if not is_requested or not self._acceptors:
            return ()
        if (caller := self.admission.student_of(credentials)) is None:
            return ()
        owner = caller.owner
        sessions = [name for name, offered in self._offers.items() if offered.owner == owner]
        if len(sessions) >= _OFFERS_TO_ONE:
            del self._offers[sessions[0]]
        elif len(self._offers) >= _OFFERS:
            del self._offers[next(iter(self._offers))]
        offer = TransportOffer.new(self._grpc_port, self.port, self._unix_name)
        self._offers[offer.session] = PendingOffer(offer, credentials, owner)
        return offer.metadata()

    async def bind(self, grpc_port: int) -> None:
        """Listen on TCP and on a Unix socket. Connections need an offer.

        Raises:
            AddressInUse: another process listens on the configured port.
        """
        self._grpc_port = grpc_port
        config = self.config
        tls = None if config.security is None else config.security.tls
        context = None if tls is None else reloading_context(tls, ask_clients=tls.ca is not None)
        listening = bind_socket(config.host, config.transport_port, "--transport-port")
        self.port = listening.getsockname()[1]
        self._accept(listening, context)
        self._unix_name = f"edl-teacher-{secrets.token_hex(16)}"
        local = socket.socket(socket.AF_UNIX)
        local.bind(f"\0{self._unix_name}")
        self._accept(local, None)

    def _accept(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        listening.listen(_BACKLOG)
        acceptor = Acceptor(
            listening,
            partial(ReaderConnection, self),
            tls,
            max_connections=self.config.max_calls + _MAX_UNPROVED,
            open_connections=lambda: len(self._connections),
            make_room=self._end_oldest_unproved,
        )
        self._acceptors.append(acceptor)
        acceptor.start()

    async def close(self, grace_s: float) -> None:
        """Stop listening, and wait up to `grace_s` until all requests are answered."""
        acceptors, self._acceptors = self._acceptors, []
        for acceptor in acceptors:
            acceptor.close()
        for connection in list(self._connections):
            connection.leave()
        if self._connections:
            self._all_closed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_closed.wait(), grace_s)
        for connection in list(self._connections):
            connection.abort()

    # --- called by connections

    def connection_opened(self, connection: ReaderConnection) -> None:
        """Add a connection without a proof; end the oldest of these if there are too many."""
        self._connections.add(connection)
        if len(self._unproved) >= _MAX_UNPROVED:
            self._end_oldest_unproved()
        self._unproved[connection] = None

    def take_offer(self, session: bytes) -> PendingOffer | None:
        """Remove and return the offer of a session; None if unknown or no longer authorised."""
        if (offered := self._offers.pop(session, None)) is None:
            return None
        try:
            self.admission.admit(offered.credentials, "student")
        except AccessError:
            return None
        return offered

    def connection_proved(self, connection: ReaderConnection) -> None:
        self._unproved.pop(connection, None)

    def connection_closed(self, connection: ReaderConnection) -> None:
        self._unproved.pop(connection, None)
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    def _end_oldest_unproved(self) -> bool:
        if (oldest := next(iter(self._unproved), None)) is None:
            return False
        del self._unproved[oldest]
        oldest.abort()
        return True

"""Who calls, as the gate, the limits and shared memory tell callers apart.

A caller is asked whether it is on this host, and as which user it runs, before its own memory is
read.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import grpc

from ...coordinator.config import join_address
from ...errors import RequestRefused

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED: Final = "01"

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class CallerIdentity:
    """One caller at one address.

    Attributes:
        principal: what is equal for calls with the same authority.
        host: the caller's IP address.
        port: its port.
        uid: the user behind its Unix socket, as the kernel says; None: it comes by TCP.
    """

    principal: str
    host: str
    port: int
    uid: int | None = None

    @property
    def address(self) -> str:
        """Where its connection comes from: "HOST:PORT"."""
        return join_address(self.host, self.port)

    @property
    def owner(self) -> str:
        """To whom regions belong: the same for every connection and protocol of a caller."""
        return _owner(self.principal, self.host)

    def is_here(self) -> bool:
        """Whether it is on this host: nobody else has an address of ours."""
        if (address := _plain(self.host)) is None:
            return False
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind((str(address), 0))
            except OSError:
                return False
        return True

    def listed_uid(self) -> int:
        """The user that its TCP connection belongs to; ours where the system lists none.

        Raises:
            RequestRefused: it lists some, and not this one: it stands no more, half of it is
                closed, or it comes from elsewhere behind an address of this host. Or users share
                its address and port, each with another peer.
        """
        listed, found = False, set[int]()
        if (address := _plain(self.host)) is not None:
            forms = {_as_listed(address, self.port), _as_listed(_mapped(address), self.port)}
            for table in _TABLES:
                with contextlib.suppress(OSError):  # no such table here
                    text = table.read_text()
                    listed = True
                    found |= _users_of(text, forms)
        if len(found) == 1:
            return found.pop()
        if listed:  # to take it for ours would open our memory to whoever hides
            raise RequestRefused(
                f"it is not clear which user of this host has the connection from {self.address}:"
                " send tensors in the request"
            )
        return os.geteuid()


def user_behind(connection: socket.socket) -> int:
    """The user that the other side of a Unix socket runs as; -1 where the system does not say."""
    if not hasattr(socket, "SO_PEERCRED"):
        return -1
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(said)[1])


#: Process, user, group.
_CREDENTIALS: Final = struct.Struct("3i")

# Of each request, of which one caller sends many.


@lru_cache(maxsize=1024)
def _host_and_port(peer: str) -> tuple[str, int]:
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0


@lru_cache(maxsize=1024)
def _owner(principal: str, host: str) -> str:
    return f"{principal} at {_plain(host)}"


@lru_cache(maxsize=1024)
def _plain(host: str) -> _Address | None:
    """The address; one of IPv4 as such, in whichever form it came."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _mapped(address: _Address) -> _Address:
    """As a socket for both families has it."""
    if address.version == 6:
        return address
    return ipaddress.IPv6Address(f"::ffff:{address}")


def _as_listed(address: _Address, port: int) -> str:
    """As the kernel lists a socket: 32-bit words as this machine holds them, then the port."""
    packed = address.packed
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return f"{b''.join(word[::-1] for word in words).hex().upper()}:{port:04X}"


def _users_of(table: str, local: set[str]) -> set[int]:
    """Those that have connections from one of these addresses."""
    lines = (line.split() for line in table.splitlines()[1:])
    return {int(one[7]) for one in lines if one[1] in local and one[3] == _ESTABLISHED}


_Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class CallCredentials:
    """What a call has shown of its caller, to be held against the gate again later.

    A token that is withdrawn counts no more then; of a certificate only the name is looked at.

    Attributes:
        metadata: of the call.
        identities: of its connection.
        peer: where that comes from, as gRPC says it: "ipv4:10.0.0.7:5000", "ipv6:%5B::1%5D:5000";
            empty: it is none of gRPC's.
        uid: the user behind the Unix socket that it is used by; None: it is used by TCP.
        client: host and port of a connection that is none of gRPC's.
    """

    metadata: Iterable[tuple[str, str | bytes]] | None
    identities: Mapping[str, Any] | None
    peer: str
    uid: int | None = None
    client: tuple[str, int] | None = None

    @classmethod
    def from_context(cls, context: _Context) -> CallCredentials:
        """What the caller of `context` has shown."""
        identities: Any = context.auth_context()
        return cls(context.invocation_metadata(), identities, str(context.peer()))

    def caller_identity(self, principal: str = "") -> CallerIdentity:
        """Who has shown it, once it is known which authority that has."""
        return CallerIdentity(principal, *(self.client or _host_and_port(self.peer)), self.uid)

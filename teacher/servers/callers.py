"""Identities of callers, for access, limits and shared memory.

Before a teacher reads the memory of a caller, this module finds out whether the caller is on this
host, and which user it is.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import grpc

from ...runtime.addresses import join_address
from ...runtime.errors import RequestRefused

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED: Final = "01"

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class CallerIdentity:
    """One caller at one address.

    Attributes:
        principal: identifies the caller. Calls with the same principal have the same rights.
        host: the caller's IP address.
        port: its port.
    """

    principal: str
    host: str
    port: int

    @property
    def address(self) -> str:
        """The other end of its connection, "HOST:PORT"."""
        return join_address(self.host, self.port)

    @property
    def owner(self) -> str:
        """Key for limits and shared memory, equal for all connections and protocols of a caller."""
        return f"{self.principal} at {_parse_address(self.host)}"

    def listed_uid(self) -> int:
        """Return the user of its TCP connection, from /proc/net.

        Raises:
            RequestRefused: the tables do not contain the connection (the caller is on another host,
                or the connection is closed or half closed), or contain it for several users.
        """
        uids = set[int]()
        if (address := _parse_address(self.host)) is not None:
            forms = {_as_listed(address, self.port)}
            if address.version == 4:  # as a dual-stack socket shows it
                mapped = ipaddress.IPv6Address(f"::ffff:{address}")
                forms.add(_as_listed(mapped, self.port))
            for table in _TABLES:
                with contextlib.suppress(OSError):  # this system has no such table
                    rows = (line.split() for line in table.read_text().splitlines()[1:])
                    uids |= {int(r[7]) for r in rows if r[1] in forms and r[3] == _ESTABLISHED}
        if len(uids) != 1:
            raise RequestRefused(
                f"the connection from {self.address} is not known as that of a user of this host: "
                "send tensors in the request"
            )
        return uids.pop()


def user_behind(connection: socket.socket) -> int:
    """Return the user at the other end of a Unix socket."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(packed)[1])


#: `struct ucred` of Linux: process, user, group.
_UCRED: Final = struct.Struct("3i")

# Cached, because one caller sends many requests.


@lru_cache(maxsize=1024)
def _host_and_port(peer: str) -> tuple[str, int]:
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0


@lru_cache(maxsize=1024)
def _parse_address(host: str) -> _Address | None:
    """Parse an address; IPv6 forms of IPv4 addresses become IPv4. None if it is invalid."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _as_listed(address: _Address, port: int) -> str:
    """Return the kernel's notation: 32-bit words in the machine's byte order, then the port."""
    packed = address.packed
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return f"{b''.join(word[::-1] for word in words).hex().upper()}:{port:04X}"


_Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class CallCredentials:
    """The credentials of a call, which can be checked again later.

    A later check fails if the token was withdrawn. Of a certificate, only the name is checked
    again, so its expiry is not noticed.

    Attributes:
        metadata: metadata of the call.
        identities: identities of its connection, as in gRPC's `auth_context()`.
        peer: as gRPC names it: "ipv4:10.0.0.7:5000", "ipv6:%5B::1%5D:5000"; empty without gRPC.
        uid: the user behind a Unix socket; None for TCP.
        client: host and port of a connection without gRPC.
    """

    metadata: Iterable[tuple[str, str | bytes]] | None
    identities: Mapping[str, Any] | None
    peer: str
    uid: int | None = None
    client: tuple[str, int] | None = None

    @classmethod
    def from_context(cls, context: _Context) -> CallCredentials:
        """Return the credentials of a gRPC call."""
        identities: Any = context.auth_context()
        return cls(context.invocation_metadata(), identities, str(context.peer()))

    def address(self) -> str:
        """Return the address of the caller, for logs."""
        return self.caller_identity().address

    def caller_identity(self, principal: str = "") -> CallerIdentity:
        """Return the caller, given the principal of its credentials."""
        return CallerIdentity(principal, *(self.client or _host_and_port(self.peer)))

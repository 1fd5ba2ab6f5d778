"""Connects to teachers' machines to find out whether the machines are reachable."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

from ...proto.protocols import host_and_port
from ...scheduler.reachability import ATTEMPT_S
from ...scheduler.reader_core.events import PathsTried, Peer
from .inbox import Inbox

#: Errors of this machine, not of the network.
_LOCAL_ERRORS: Final = (
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOBUFS,
    errno.ENOMEM,
    errno.EADDRNOTAVAIL,  # of an IPv6 address, if this machine has no IPv6 address
    errno.EAFNOSUPPORT,  # of an IPv6 address, if the kernel has no IPv6
)

#: (family, address) pairs of a name, from `socket.getaddrinfo`.
_SocketAddresses = list[tuple[int, Any]]


class ConnectionAttempts:
    """Tries connections in background threads. Its methods are for the engine's thread.

    Names are resolved while teachers are reachable, because DNS may fail when the network fails.

    Args:
        inbox: inbox of the engine's thread.
        tried: receives the result of each attempt, in the engine's thread.
    """

    def __init__(self, inbox: Inbox, tried: Callable[[PathsTried], None]) -> None:
        self._inbox = inbox
        self._tried = tried
        self._resolved: dict[str, _SocketAddresses] = {}  # by address of a teacher
        self._in_lookup: set[str] = set()  # addresses that a thread resolves now

    def resolve(self, address: str) -> None:
        """Resolve the name of a teacher that has answered, unless this was done before."""
        if address not in self._resolved:
            self._start_lookup(address)

    def attempt(self, peer: Peer, began_at: float) -> None:
        """Connect to a teacher's machine without sending anything; `tried` gets the result."""
        if not _in_background(self._attempt, peer, began_at, self._resolved.get(peer.address)):
            self._inbox.post(self._attempted, peer, began_at, "")  # an unknown result, no refusal

    def _attempt(self, peer: Peer, began_at: float, addresses: _SocketAddresses | None) -> None:
        try:
            refusal = _refusal(addresses or _socket_addresses(peer.address))
        except ValueError:  # an address that only gRPC understands
            refusal = ""
        self._inbox.post(self._attempted, peer, began_at, refusal)

    def _attempted(self, peer: Peer, began_at: float, refusal: str) -> None:
        if refusal:
            self._start_lookup(peer.address)  # the name may have new addresses
        self._tried(PathsTried(began_at, {peer: refusal}))

    def _start_lookup(self, address: str) -> None:
        """Resolve a name in the background."""
        if address not in self._in_lookup and _in_background(self._look_up, address):
            self._in_lookup.add(address)

    def _look_up(self, address: str) -> None:
        try:
            addresses = _socket_addresses(address)
        except ValueError:
            addresses = []
        self._inbox.post(self._looked_up, address, addresses)

    def _looked_up(self, address: str, addresses: _SocketAddresses) -> None:
        self._in_lookup.discard(address)
        if addresses or address not in self._resolved:
            self._resolved[address] = addresses


def _in_background(function: Callable[..., None], *arguments: Any) -> bool:
    """Call a function in a thread; returns False if the system refuses a thread."""
    name = f"edl-path{function.__name__.replace('_', '-')}"
    try:
        threading.Thread(target=function, args=arguments, name=name, daemon=True).start()
    except RuntimeError:
        return False
    return True


def _socket_addresses(address: str) -> _SocketAddresses:
    """Resolve a teacher's address; empty if its name cannot be resolved.

    Raises:
        ValueError: no socket can be connected to this kind of address.
    """
    try:
        infos = socket.getaddrinfo(*host_and_port(address), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [(family, address) for family, _, _, _, address in infos]


def _refusal(addresses: _SocketAddresses) -> str:
    """Return why no machine accepts a connection at these addresses.

    Empty if a machine accepts one, or if errors of this machine prevent all attempts. Local errors
    at single addresses are ignored: without IPv6 on this machine, every IPv6 address causes one.
    """
    refusal = "" if addresses else "its name is not known"
    for family, address in addresses:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as attempt:
                attempt.settimeout(ATTEMPT_S)
                attempt.connect(address)
        except OSError as error:
            if error.errno not in _LOCAL_ERRORS:
                refusal = error.strerror or str(error)
        else:
            return ""
    return refusal

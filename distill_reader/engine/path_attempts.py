"""Connects to teachers' machines, to find out whether they can be reached."""

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
_OURS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)

#: Families and addresses of a name, from `socket.getaddrinfo`.
_Places = list[tuple[int, Any]]


class PathAttempts:
    """Tries connections in threads. Used by the engine's thread alone.

    Names are resolved while teachers can be reached, as DNS may fail together with the network.

    Args:
        inbox: of the engine's thread.
        tried: receives the result of each attempt, in that thread.
    """

    def __init__(self, inbox: Inbox, tried: Callable[[PathsTried], None]) -> None:
        self._inbox = inbox
        self._tried = tried
        self._places: dict[str, _Places] = {}  # by address of a teacher
        self._looked_up: set[str] = set()  # addresses being resolved

    def heard(self, address: str) -> None:
        """A teacher at this address has answered."""
        if address not in self._places:
            self._look_up(address)

    def attempt(self, peer: Peer, began_at: float) -> None:
        """Connect to a teacher's machine, and send nothing."""
        _in_background(self._attempt, peer, began_at, self._places.get(peer.address))

    def _attempt(self, peer: Peer, began_at: float, places: _Places | None) -> None:
        try:
            refusal = _refusal(places or _look_up(peer.address))
        except ValueError:  # an address that only gRPC understands
            refusal = ""
        self._inbox.post(self._attempted, peer, began_at, refusal)

    def _attempted(self, peer: Peer, began_at: float, refusal: str) -> None:
        if refusal:
            self._look_up(peer.address)  # it may have moved
        self._tried(PathsTried(began_at, {peer: refusal}))

    def _look_up(self, address: str) -> None:
        """Resolve a name in the background."""
        if address not in self._looked_up:
            self._looked_up.add(address)
            _in_background(self._find, address)

    def _find(self, address: str) -> None:
        try:
            places = _look_up(address)
        except ValueError:
            places = []
        self._inbox.post(self._found, address, places)

    def _found(self, address: str, places: _Places) -> None:
        self._looked_up.discard(address)
        if places or address not in self._places:
            self._places[address] = places


def _in_background(function: Callable[..., None], *arguments: Any) -> None:
    name = f"edl-path{function.__name__.replace('_', '-')}"
    threading.Thread(target=function, args=arguments, name=name, daemon=True).start()


def _look_up(address: str) -> _Places:
    """Resolve a teacher's address; empty if its name is unknown.

    Raises:
        ValueError: no socket can be connected to it.
    """
    try:
        found = socket.getaddrinfo(*host_and_port(address), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [(family, place) for family, _, _, _, place in found]


def _refusal(places: _Places) -> str:
    """Why no machine accepts a connection at these addresses; empty if one does."""
    refusal = "its name is not known"
    for family, place in places:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as attempt:
                attempt.settimeout(ATTEMPT_S)
                attempt.connect(place)
        except OSError as error:
            if error.errno not in _OURS:
                refusal = error.strerror or str(error)
                continue
        return ""
    return refusal

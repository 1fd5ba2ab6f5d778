"""Tries whether teachers can be reached, when none of them says anything."""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from ...proto.dialects import host_and_port
from ...scheduler import reachability
from .inbox import Inbox
from .outcomes import Peer
from .pool import Pool

#: Errors of this machine, which say nothing of the network.
_OURS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)

#: Nothing has to be found out.
_CALM: Final[reachability.Reachability[Peer]] = reachability.Reachability()

#: Where a name leads, as `socket.getaddrinfo` tells it: families and addresses.
_Places = list[tuple[int, Any]]

log = logging.getLogger(__name__)


class ReachabilityCheck:
    """Carries `scheduler.reachability` out. Used by the engine's thread alone.

    Names are looked up while teachers can be reached, as DNS may go with the path to them.

    Args:
        pool: the links to the teachers.
        inbox: of the engine's thread.
        connect_anew: called with the name of each teacher that can be reached again.
    """

    def __init__(self, pool: Pool, inbox: Inbox, connect_anew: Callable[[str], None]) -> None:
        self._pool = pool
        self._inbox = inbox
        self._connect_anew = connect_anew
        self._known = _CALM
        self._places: dict[str, _Places] = {}  # by address of a teacher
        self._looked_up: set[str] = set()  # addresses that are, at the moment

    @property
    def cut_off_since(self) -> float | None:
        """Since when no teacher can be reached, in seconds since 1970; None: that is not so."""
        if not self._known.is_cut_off or self._known.silent_since is None:
            return None
        return time.time() - (time.monotonic() - self._known.silent_since)

    def may_be_cut_off(self, now: float) -> bool:
        """Whether no teacher can be reached, as far as is known by now."""
        return self._known.may_be_cut_off(now)

    def look(self, owed: bool, now: float) -> None:
        """Time goes by, in which an answer of some teacher is outstanding or not."""
        known, due = reachability.look(self._known, self._pool.wanted.values(), owed, now)
        self._learn(known)
        for peer in due:
            places = self._places.get(peer.address)
            _in_background(self._attempt, peer, known.attempts[peer].began_at, places)

    def heard(self, peer: Peer) -> None:
        """A teacher has answered."""
        if peer.address not in self._places:
            self._look_up(peer.address)
        if not self._known.attempts:  # as nearly always
            self._known = _CALM
        else:
            self._learn(reachability.heard(self._known, peer))

    def _attempt(self, peer: Peer, began_at: float, places: _Places | None) -> None:
        try:
            refusal = _refusal(places or _look_up(peer.address))
        except ValueError:  # an address that only gRPC understands
            refusal = ""
        self._inbox.post(self._attempted, peer, began_at, refusal)

    def _attempted(self, peer: Peer, began_at: float, refusal: str) -> None:
        known, anew = reachability.attempted(self._known, peer, began_at, not refusal)
        self._learn(known)
        if refusal:
            self._pool.last_trouble = f"teacher {peer.teacher_id} cannot be reached: {refusal}"
            self._look_up(peer.address)  # it may have moved
        if anew and self._pool.wanted.get(peer.teacher_id) == peer:
            self._connect_anew(peer.teacher_id)

    def _look_up(self, address: str) -> None:
        """Find out in the background where a name leads now."""
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

    def _learn(self, known: reachability.Reachability[Peer]) -> None:
        self._known = known
        before, after = self._pool.out_of_reach, {peer.teacher_id for peer in known.unreachable}
        self._pool.out_of_reach = frozenset(after)
        for name in sorted(after - before):
            log.warning("teacher %s cannot be reached", name, extra={"teacher": name})
        for name in sorted(before - after):
            log.info("teacher %s can be reached again", name, extra={"teacher": name})


def _in_background(function: Callable[..., None], *arguments: Any) -> None:
    name = f"edl-reachability-{function.__name__}"
    threading.Thread(target=function, args=arguments, name=name, daemon=True).start()


def _look_up(address: str) -> _Places:
    """Where a teacher's address leads; nowhere where its name is not known.

    Raises:
        ValueError: no socket can be connected to it.
    """
    try:
        found = socket.getaddrinfo(*host_and_port(address), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [(family, place) for family, _, _, _, place in found]


def _refusal(places: _Places) -> str:
    """Why no machine accepts a connection at these places; empty where one does.

    Nothing is sent.
    """
    refusal = "its name is not known"
    for family, place in places:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as attempt:
                attempt.settimeout(reachability.ATTEMPT_S)
                attempt.connect(place)
        except OSError as error:
            if error.errno not in _OURS:
                refusal = error.strerror or str(error)
                continue
        return ""
    return refusal

"""Tries whether teachers can be reached, when none of them says anything."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from ...proto.dialects import host_and_port
from ...scheduler import reachability
from .inbox import Inbox
from .pool import Pool

#: Nothing has to be found out.
_CALM: Final = reachability.Reachability()

log = logging.getLogger(__name__)


class ReachabilityCheck:
    """Carries `scheduler.reachability` out. Used by the engine's thread alone.

    Args:
        pool: the links to the teachers.
        inbox: of the engine's thread.
        connect_anew: called with each teacher that can be reached again.
    """

    def __init__(self, pool: Pool, inbox: Inbox, connect_anew: Callable[[str], None]) -> None:
        self._pool = pool
        self._inbox = inbox
        self._connect_anew = connect_anew
        self._known = _CALM

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
        known, due = reachability.look(self._known, self._pool.wanted.keys(), owed, now)
        self._learn(known)
        for name in due:
            address = self._pool.wanted[name].address
            thread = threading.Thread(
                target=self._attempt, args=(name, address), name=f"edl-attempt-{name}", daemon=True
            )
            thread.start()

    def heard(self, name: str) -> None:
        """A teacher has answered."""
        if not self._known.attempts:  # as nearly always
            self._known = _CALM
        else:
            self._learn(reachability.heard(self._known, name))

    def _attempt(self, name: str, address: str) -> None:
        self._inbox.post(self._attempted, name, _can_be_reached(address))

    def _attempted(self, name: str, reached: bool) -> None:
        known, anew = reachability.attempted(self._known, name, reached)
        self._learn(known)
        if anew:
            self._connect_anew(name)

    def _learn(self, known: reachability.Reachability) -> None:
        before, after = self._known.unreachable, known.unreachable
        self._known, self._pool.out_of_reach = known, after
        for name in sorted(after - before):
            log.warning("teacher %s cannot be reached", name, extra={"teacher": name})
        for name in sorted(before - after):
            log.info("teacher %s can be reached again", name, extra={"teacher": name})


def _can_be_reached(address: str) -> bool:
    """Whether its machine accepts a connection; nothing is sent."""
    try:
        target = host_and_port(address)
    except ValueError:  # of a kind that only gRPC understands
        return True
    try:
        socket.create_connection(target, timeout=reachability.ATTEMPT_S).close()
    except OSError:
        return False
    return True

"""Counts the TLS handshakes that came to nothing.

TLS turns away whoever has no certificate, or one of a stranger's CA, before there is a call that
could be answered, and gRPC tells the server nothing of it. But it asks for our certificate before
each handshake: one after which no call comes in time has failed. So has a connection that was only
opened and closed, as port scans and some health checks do.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

#: Seconds until the first call over a new connection. Ours comes in the same breath; gRPC itself
#: gives a handshake 20 s, but who takes so long does not call either.
PATIENCE_S: Final = 10.0
_MAX_WAITING = 4096
_MAX_KNOWN = 16384


class Handshakes:
    """Those of one server. Safe to use from several threads.

    It looks at the clock only when something happens, so a failure is counted with the next
    connection or call. A peer that comes back with the very port it had before is taken for the
    old connection, and counts once too often.

    Args:
        on_failed: called for each failure.
        patience_s: seconds until the first call.
        clock: seconds, from anywhere.
    """

    def __init__(
        self,
        on_failed: Callable[[], None],
        *,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_failed = on_failed
        self._patience_s = patience_s
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: deque[float] = deque()  # when each began
        self._known: dict[str, None] = {}  # peers that have called, in the order of their first

    def began(self) -> None:
        """A connection asks for our certificate."""
        now = self._clock()
        with self._lock:
            self._waiting.append(now)
            failed = self._take_failed(now)
        self._count(failed)

    def called(self, peer: str) -> None:
        """A call came from `peer`, as gRPC names one end of a connection."""
        if peer in self._known and not self._waiting:
            return
        now = self._clock()
        with self._lock:
            if peer not in self._known:
                self._known[peer] = None
                if len(self._known) > _MAX_KNOWN:
                    del self._known[next(iter(self._known))]
                if self._waiting:
                    self._waiting.pop()
            failed = self._take_failed(now)
        self._count(failed)

    def _take_failed(self, now: float) -> int:
        failed = 0
        while self._waiting and (
            self._waiting[0] < now - self._patience_s or len(self._waiting) > _MAX_WAITING
        ):
            self._waiting.popleft()
            failed += 1
        return failed

    def _count(self, failed: int) -> None:
        for _ in range(failed):
            self._on_failed()

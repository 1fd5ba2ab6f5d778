"""Tells the supervisor that a rank is alive while it waits: silence then means that it hangs.

A rank that waits for its batch or for other ranks says so every second; one that computes says
nothing until its step is done. So of a world that stands still the one that is silent holds it up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

EVERY_S = 1.0


class Pulse:
    """Calls `tell(what)` every second for as long as `waiting_for()` says what is waited for.

    Args:
        waiting_for: in words; empty: nothing.
        tell: called from a thread of its own.
    """

    def __init__(self, waiting_for: Callable[[], str], tell: Callable[[str], None]) -> None:
        self._waiting_for = waiting_for
        self._tell = tell
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edl-rank-pulse", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            if what := self._waiting_for():
                self._tell(what)

    def close(self) -> None:
        self._over.set()
        self._thread.join()

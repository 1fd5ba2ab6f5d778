"""The thread that does what others cannot wait for: finalizers, and the training loop.

Python runs a finalizer wherever it collects garbage: inside any call of ours, in any thread, with
any of our locks held there. So a finalizer only leaves word here, which takes no lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

log = logging.getLogger(__name__)


class Janitor:
    """Does one task after another, until `close`."""

    def __init__(self) -> None:
        # SimpleQueue.put is made for finalizers: it may interrupt itself.
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._work, name="edl-reader-janitor", daemon=True).start()

    def ask(self, task: Callable[[], None]) -> None:
        """Have `task` done soon; safe in a finalizer, and quick."""
        self._tasks.put(task)

    def close(self) -> None:
        """End the thread behind what it was asked for already."""
        self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception:
                log.exception("cleaning up behind a reader failed")
            del task

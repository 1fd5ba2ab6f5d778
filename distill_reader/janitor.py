"""The thread that runs tasks which finalizers and the training loop must not block on.

Python runs a finalizer wherever it collects garbage: inside any call, in any thread, with any lock
held. So a finalizer only queues a task here, which takes no lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

log = logging.getLogger(__name__)


class Janitor:
    """Runs queued tasks in order, until `close`."""

    def __init__(self) -> None:
        # SimpleQueue.put is made for finalizers: it may interrupt itself.
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._work, name="edl-reader-janitor", daemon=True).start()

    def ask(self, task: Callable[[], None]) -> None:
        """Queue `task`; safe in a finalizer, and quick."""
        self._tasks.put(task)

    def close(self) -> None:
        """End the thread after the queued tasks."""
        self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception:
                log.exception("cleaning up behind a reader failed")
            del task

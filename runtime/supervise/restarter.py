"""Restarts a child process after a pause whenever it ends."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from ..errors import ProcessFailed
from .process import Command, Process, describe_exit, start

log = logging.getLogger(__name__)

#: Seconds for which `stop` waits for a running callback.
CALLBACK_S = 5.0
#: Bounds of the first and of the longest pause, in seconds.
BASE_S, CAP_S = 0.1, 5.0
#: After a child that ran for this many seconds, pauses are short again.
HEALTHY_S = 10.0


class Restarter:
    """Starts `command`, and restarts it whenever it ends, until `stop`.

    `start()` starts the first child in the caller's thread, so that the caller gets the errors.
    Restarts and calls of `on_exit` happen in a separate thread. The pauses before restarts are
    random. Their bound doubles with each restart from 0.1 to 5 s, and is 0.1 s again after a child
    that ran for 10 s.

    Args:
        command: the program.
        on_start: called with each new child, right after its start. If it raises an error, the
            child is killed. `start()` then raises the error; a restart is tried again.
        on_exit: called with each child that ended without `stop`, and with its exit code. Not
            called for a child that was killed because `on_start` raised an error.
    """

    def __init__(
        self,
        command: Command,
        *,
        on_start: Callable[[Process], None] = lambda process: None,
        on_exit: Callable[[Process, int], None] = lambda process, code: None,
    ) -> None:
        self._command = command
        self._on_start = on_start
        self._on_exit = on_exit
        self._lock = threading.Lock()  # so that nothing starts after `stop`
        self._stopping = threading.Event()
        self._process: Process | None = None
        self._restarts = 0
        self._thread = threading.Thread(target=self._run, name="edl-restarter", daemon=True)

    @property
    def process(self) -> Process | None:
        """The latest child, which may have ended; None before `start`."""
        return self._process

    @property
    def restarts(self) -> int:
        """Restarts, also failed ones, since the end of the last child that ran for `HEALTHY_S`."""
        return self._restarts

    def start(self) -> Process:
        """Start the first child and the thread that restarts it. Raises ProcessFailed."""
        try:
            process = self._launch()
        except BaseException:  # on_start may have failed while the child runs
            self.stop(0.0)
            raise
        if process is None:
            raise ProcessFailed("a restarter that was stopped does not start again")
        self._thread.start()
        return process

    def stop(self, grace_s: float = 5.0) -> int | None:
        """End the child (SIGTERM, then SIGKILL), and start no other; return the exit code.

        Idempotent. Raises ProcessFailed if the child has not ended 5 s after SIGKILL.
        """
        with self._lock:
            self._stopping.set()
            process = self._process
        code = process.stop(grace_s) if process is not None else None
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(CALLBACK_S)
        return code

    def _launch(self) -> Process | None:
        with self._lock:
            if self._stopping.is_set():
                return None
            process = self._process = start(self._command)
        self._on_start(process)
        return process

    def _run(self) -> None:
        while not self._stopping.is_set():
            process, began = self._process, time.monotonic()
            assert process is not None
            code = process.wait()
            if code is None or self._stopping.is_set():
                return
            if time.monotonic() - began >= HEALTHY_S:
                self._restarts = 0
            pause_s = self._next_pause_s()
            log.warning(
                "%s %s; another starts in %.2f s", process.name, describe_exit(code), pause_s
            )
            self._report_exit(process, code)
            self._relaunch(pause_s)

    def _relaunch(self, pause_s: float) -> None:
        """Start another child; retry until it succeeds or `stop` is called."""
        while not self._stopping.wait(pause_s):
            try:
                self._launch()
                return
            except Exception as error:  # `on_start` may have failed, while its child runs
                log.error("restart failed: %s", error)
                if self._process is not None:
                    self._process.kill()
            pause_s = self._next_pause_s()

    def _next_pause_s(self) -> float:
        """Count a restart; return the pause before it: a random fraction of a doubling bound.

        The fraction is from 0 to 1, so that many children that died of one cause do not restart
        together.
        """
        bound_s = min(CAP_S, BASE_S * 2.0 ** min(self._restarts, 60))
        self._restarts += 1
        return random.random() * bound_s

    def _report_exit(self, process: Process, code: int) -> None:
        try:
            self._on_exit(process, code)
        except Exception:
            log.exception("%s will be restarted, though the exit callback failed", process.name)

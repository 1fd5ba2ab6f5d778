"""Restarts a child, after a pause, whenever it ends."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from ..errors import ProcessFailed
from .command import Command
from .process import Process, describe_exit, start

log = logging.getLogger(__name__)

#: Seconds for which `stop` waits for a running callback.
CALLBACK_S = 5.0


def full_jitter_s(attempt: int, fraction: float, base_s: float, cap_s: float) -> float:
    """Return the seconds to wait before a restart: a random fraction of a doubling bound.

    The whole range is used so that many children that died of one cause do not restart together.

    Args:
        attempt: failures so far; 0 before the first restart.
        fraction: random, in [0, 1).
        base_s: bound of the first pause, in seconds.
        cap_s: largest bound, in seconds.
    """
    return fraction * min(cap_s, base_s * 2.0 ** min(attempt, 60))


class Restarter:
    """Starts `command`, and restarts it whenever it ends, until `stop`.

    `start()` starts the first child in the caller's thread, so that the caller gets its errors.
    Restarts and calls of `on_exit` happen in a thread of its own. Pauses grow with each restart.

    Args:
        command: the program, or a function that is called at each start (for new descriptors).
        on_start: called with each new child at once.
        on_exit: called with each child that ended by itself, and its exit code.
        echo: passed to `start`.
        base_s: bound of the first pause, in seconds.
        cap_s: bound of the longest pause, in seconds.
        healthy_s: after a child that ran for so many seconds, pauses are short again.
        rng: source of the random pauses.
    """

    def __init__(
        self,
        command: Command | Callable[[], Command],
        *,
        on_start: Callable[[Process], None] | None = None,
        on_exit: Callable[[Process, int], None] | None = None,
        echo: Callable[[str], None] | None = None,
        base_s: float = 0.1,
        cap_s: float = 5.0,
        healthy_s: float = 10.0,
        rng: random.Random | None = None,
    ) -> None:
        self._command = command
        self._on_start = on_start
        self._on_exit = on_exit
        self._echo = echo
        self._base_s, self._cap_s, self._healthy_s = base_s, cap_s, healthy_s
        self._rng = rng or random.Random()
        self._lock = threading.Lock()  # so that nothing starts after `stop`
        self._stopping = threading.Event()
        self._process: Process | None = None
        self._restarts = 0
        self._thread = threading.Thread(target=self._keep, name="edl-restarter", daemon=True)

    @property
    def process(self) -> Process | None:
        """The latest child, which may have ended; None before `start`."""
        return self._process

    @property
    def restarts(self) -> int:
        """Number of restarts, also failed ones, since the last child that ran for `healthy_s`."""
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
        """End the child (SIGTERM, then SIGKILL) and restarts; return its exit code. Idempotent."""
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
            command = self._command() if callable(self._command) else self._command
            process = self._process = start(command, echo=self._echo)
        if self._on_start is not None:
            self._on_start(process)
        return process

    def _keep(self) -> None:
        while not self._stopping.is_set():
            process, began = self._process, time.monotonic()
            assert process is not None
            code = process.wait()
            if code is None or self._stopping.is_set():
                return
            if time.monotonic() - began >= self._healthy_s:
                self._restarts = 0
            pause_s = full_jitter_s(self._restarts, self._rng.random(), self._base_s, self._cap_s)
            self._restarts += 1
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
            except Exception as error:  # or from on_start: start another child then, too
                log.error("restart failed: %s", error)
                self._restarts += 1
                if self._process is not None:
                    self._process.kill()
            fraction = self._rng.random()
            pause_s = full_jitter_s(self._restarts, fraction, self._base_s, self._cap_s)

    def _report_exit(self, process: Process, code: int) -> None:
        if self._on_exit is None:
            return
        try:
            self._on_exit(process, code)
        except Exception:
            log.exception("%s will be restarted, though the exit callback failed", process.name)

"""The pipeline server as a child process: started, awaited, started again, ended whole."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ... import supervise
from ...errors import EdlError, ProcessFailed
from ...lifecycle import Stop
from ..predictor_client import CRASHES_AT_MOST
from .model import PYTHON_OPTIONS

#: A start takes 5 to 16 s for a small model, and one for GPUs compiles.
START_S: Final = 300.0
#: Between two looks whether it answers yet.
_PAUSE_S: Final = 0.2
_PROBE_S: Final = 5.0
_PROGRAM: Final = Path(__file__).with_name("service.py")
#: Beyond the grace that the server itself leaves in, until it is killed.
_MARGIN_S: Final = 5.0


def command(
    python: Path,
    config: Path,
    *,
    name: str,
    host: str,
    calls: int,
    micro_batch: int,
    grace_s: float,
) -> supervise.Command:
    """What starts the server, in a process group of its own.

    Args:
        python: the interpreter of the serving environment.
        config: as `configuration.write` wrote it; the server works in its folder.
        name: of the service, which requests have to name.
        host: to listen on.
        calls: taken at once.
        micro_batch: samples of one run.
        grace_s: seconds that it may take to leave.
    """
    said = (str(config), name, host, str(calls), str(micro_batch), str(grace_s))
    return supervise.Command(
        "paddle-serving",
        (str(python), *PYTHON_OPTIONS, str(_PROGRAM), *said),
        # Upstream keeps its logs, and the list of its processes, where these say.
        env={"SERVING_HOME": str(config.parent), "SERVING_LOG_PATH": str(config.parent)},
        cwd=config.parent,
        guard=True,
    )


class ServerProcess:
    """The server, kept going until `stop`.

    Args:
        command: what to run.
        probe: raises an EdlError while the server does not answer; told for how long to wait.
        on_failure: told, once, in a thread of this, why it was given up: it ended before it had
            answered once, or keeps ending.
    """

    def __init__(
        self,
        command: supervise.Command,
        probe: Callable[[float], object],
        on_failure: Callable[[ProcessFailed], None],
    ) -> None:
        self._keeper = supervise.Keeper(command, on_exit=self._ended)
        self._probe = probe
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._answered = False
        self._failure: ProcessFailed | None = None

    def start(self, stop: Stop) -> bool:
        """Start it and wait until it answers; False when a stop came first.

        Raises:
            ProcessFailed: it ended, or did not answer within `START_S`.
        """
        self._keeper.start()
        deadline = time.monotonic() + START_S
        while not stop.wait(_PAUSE_S):
            if self._failure is not None:
                raise self._failure
            try:
                self._probe(_PROBE_S)
            except EdlError as error:
                if time.monotonic() > deadline:
                    raise ProcessFailed(
                        f"Paddle Serving does not answer {START_S:g} s after its start: {error}"
                    ) from None
            else:
                self._answered = True
                return True
        return False

    def stop(self, grace_s: float) -> None:
        """Ask it to leave, and end what is left of its process group. Idempotent."""
        self._keeper.stop(grace_s + _MARGIN_S)

    def _ended(self, process: supervise.Process, code: int) -> None:
        with self._lock:
            if self._failure is not None or (
                self._answered and self._keeper.failures < CRASHES_AT_MOST
            ):
                return
            last = next((line for line in reversed(process.tail()) if line.strip()), "")
            self._failure = ProcessFailed(
                f"Paddle Serving {supervise.describe_exit(code)}; its last line: {last.strip()}"
            )
        self._on_failure(self._failure)

"""A process that outlives its parent, for commands that the user runs in the background."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import Final

from ..errors import ProcessFailed
from ..standard_streams import open_standard_fds
from .command import Command
from .life import LIFE_VARIABLE

_EXIT_UNKNOWN: Final = 1


class Background:
    """A process that does not end with its parent.

    It has its own session, writes its output to a file, and inherits no life pipe (see `life.py`).
    The processes that it starts itself by `runtime.supervise` end with it, as usual.

    Args:
        command: the program; it must have a `log`.

    Raises:
        ProcessFailed: the program cannot be executed, or its log cannot be written.
    """

    def __init__(self, command: Command) -> None:
        assert command.log is not None, "its output has to go somewhere"
        open_standard_fds()
        environment = {**os.environ, **command.env}
        environment.pop(LIFE_VARIABLE, None)
        try:
            with command.log.open("ab", buffering=0) as log:
                self._popen = subprocess.Popen(
                    command.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    cwd=command.cwd,
                    start_new_session=True,
                )
        except OSError as error:
            why = f"{error.strerror}: {error.filename}" if error.filename else str(error)
            raise ProcessFailed(f"cannot start {command.name}: {why}") from error
        self.pid = self._popen.pid

    def wait(self, timeout_s: float) -> int | None:
        """Wait for its end; return its exit code (-N after signal N), or None after `timeout_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._popen.wait(timeout_s)
        return None

    def leave(self) -> None:
        """Let it run on when this process ends, without Python's warning that it still runs."""
        if self._popen.poll() is None:
            self._popen.returncode = _EXIT_UNKNOWN  # else Popen warns when it is garbage-collected

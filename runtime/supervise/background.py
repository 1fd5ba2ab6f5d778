"""A process that outlives the one that starts it: for what the user sends to the background."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import Final

from ..errors import ProcessFailed
from ..standard_streams import hold_standard_fds
from .command import Command
from .life import LIFE_VARIABLE

_EXIT_UNKNOWN: Final = 1


class Background:
    """A process in a session of its own, with its output in a file, that nobody watches.

    It gets no life pipe: it is the one thing here that does not end with its parent. What it starts
    through this folder ends with *it*.

    Args:
        command: what to run; it needs a `log`.

    Raises:
        ProcessFailed: it cannot be executed, or its log not be written.
    """

    def __init__(self, command: Command) -> None:
        assert command.log is not None, "its output has to go somewhere"
        hold_standard_fds()
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
        """Its exit code, -N after signal N; None: it still runs after `timeout_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._popen.wait(timeout_s)
        return None

    def leave(self) -> None:
        """It is on its own from now on: nobody here asks for its end any more."""
        if self._popen.poll() is None:
            self._popen.returncode = _EXIT_UNKNOWN  # else Python warns that it still runs

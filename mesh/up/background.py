"""`edl up --detach`: runs `edl up` in the background, and waits until the mesh is up."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from ...runtime.errors import UsageError
from ...runtime.lifecycle import Stop
from ...runtime.supervise import Background, identity_of, python_command
from .foreground import already_up
from .state_directory import StateDirectory

_POLL_S: Final = 0.1


def run_in_background(
    file: Path,
    directory: StateDirectory,
    options: Sequence[str],
    write: Callable[[str], None],
    stop: Stop,
) -> int | None:
    """Start `edl up` in the background and wait until the mesh is up.

    Args:
        file: file of the mesh.
        directory: its state directory.
        options: options of `edl up` for the process in the background.
        write: called with each line of output of the process.
        stop: a request to stop sends SIGTERM to the process.

    Returns:
        Exit code of the process if it has ended; None: the mesh is up.

    Raises:
        UsageError: the mesh is up already, or its directory cannot be written.
        ProcessFailed: the process cannot be started.
    """
    if (record := directory.read()) is not None and record.keeper.runs:
        raise UsageError(already_up(file, record))
    with directory.open_background_log() as log:
        words = ("up", str(file), *options)
        background = Background(
            python_command("edl up", "edl", *words, log=directory.background_log)
        )
        tail = _Tail(log, write)
        code = _until_up(background, directory, tail, stop)
        if code and not tail.any:  # the log may be empty as the disk is full
            write(f"'edl up' ended with exit code {code}; why is not in {directory.background_log}")
    return code


def _until_up(
    background: Background, directory: StateDirectory, tail: _Tail, stop: Stop
) -> int | None:
    """Return the exit code of the process if it ends before the mesh is up, otherwise None."""
    identity = identity_of(background.pid)
    terminated = False
    while (code := background.wait(_POLL_S)) is None:
        tail.update()
        state = directory.read()
        if stop.requested:
            if not terminated and identity is not None:
                identity.send(signal.SIGTERM)
            terminated = True
        elif state is not None and state.keeper == identity and state.phase == "up":
            tail.update()
            background.leave()
            return None
    tail.update()
    return code


class _Tail:
    """Copies lines that are appended to a file.

    Attributes:
        any: there were lines.
    """

    def __init__(self, file: BinaryIO, write: Callable[[str], None]) -> None:
        self._file, self._write, self._at = file, write, 0
        self.any = False

    def update(self) -> None:
        """Write new lines."""
        self._file.seek(self._at)
        data = self._file.read()
        end = data.rfind(b"\n") + 1
        self._at += end
        for line in data[:end].decode("utf-8", "replace").splitlines():
            self.any = True
            self._write(line)

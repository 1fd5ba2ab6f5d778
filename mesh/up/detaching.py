"""`edl up --detach`: the same command in the background, and what it says until all is there."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from ...errors import UsageError
from ...lifecycle import Stop
from ...supervise import Background, identity_of, python_command
from .keeping import already_up
from .place import Place

_LOOK_S: Final = 0.1


def detach(
    file: Path, place: Place, options: Sequence[str], write: Callable[[str], None], wish: Stop
) -> int | None:
    """Start `edl up` in the background and wait until the mesh is up.

    Args:
        file: of the mesh.
        place: where it is written down.
        options: of `edl up`, for the one in the background.
        write: takes what it says meanwhile.
        wish: to end: then it is told to, too.

    Returns:
        Its exit code, where it has ended already; None: the mesh is up.

    Raises:
        UsageError: the mesh is up already, or nothing can be written there.
        ProcessFailed: it cannot be started.
    """
    with place.held() as ours:
        if not ours:
            raise UsageError(already_up(file, place.read()))
        log = place.begin_own_log()
    with log:
        words = ("up", str(file), *options)
        background = Background(python_command("edl up", "edl", *words, log=place.own_log))
        tail = _Tail(log, write)
        code = _until_up(background, place, tail, wish)
        if code and not tail.told:  # a full disk takes its last words, too
            write(f"'edl up' ended with exit code {code}; why is not in {place.own_log}")
    return code


def _until_up(background: Background, place: Place, tail: _Tail, wish: Stop) -> int | None:
    """Its exit code, where it has ended before the mesh was up."""
    identity = identity_of(background.pid)
    told = False
    while (code := background.wait(_LOOK_S)) is None:
        tail.more()
        state = place.read()
        if wish.requested:
            if not told and identity is not None:
                identity.send(signal.SIGTERM)
            told = True
        elif state is not None and state.keeper == identity and state.phase == "up":
            tail.more()
            background.leave()
            return None
    tail.more()
    return code


class _Tail:
    """Hands on the lines of a file as they are written.

    Attributes:
        told: there were any.
    """

    def __init__(self, file: BinaryIO, write: Callable[[str], None]) -> None:
        self._file, self._write, self._at = file, write, 0
        self.told = False

    def more(self) -> None:
        """What has come since."""
        self._file.seek(self._at)
        data = self._file.read()
        end = data.rfind(b"\n") + 1
        self._at += end
        for line in data[:end].decode("utf-8", "replace").splitlines():
            self.told = True
            self._write(line)

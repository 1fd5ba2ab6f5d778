"""Ctrl-C while a command line is still being imported: one line and exit code 130, nothing else.

An exception amid imports would be a traceback where nobody catches it yet, or be lost in one of the
callbacks of the import system. So for that long Ctrl-C raises none. This module itself imports
nothing that takes time.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

EXIT_INTERRUPTED = 128 + signal.SIGINT


def end_at_once(name: str) -> None:
    """From now on Ctrl-C ends this process, which must not have begun anything yet.

    Without effect where SIGINT is ignored or handled by somebody already.

    Args:
        name: what the line begins with.
    """

    def end(_: int, __: FrameType | None) -> None:
        try:
            os.write(2, f"{name}: interrupted\n".encode())
        finally:
            os._exit(EXIT_INTERRUPTED)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)
        _ours.append(end)


def raise_again() -> None:
    """From now on it raises KeyboardInterrupt, as ever; without effect where it always did."""
    if signal.getsignal(signal.SIGINT) in _ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_ours: list[object] = []

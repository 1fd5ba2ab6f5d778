"""Ctrl-C during the imports of a command line: one line and exit code 130.

During imports, a KeyboardInterrupt would print a traceback, or be lost in a callback of the import
system. So Ctrl-C ends the process without an exception until the imports are done. This module
itself must import quickly.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

EXIT_INTERRUPTED = 128 + signal.SIGINT


def exit_on_interrupt(name: str) -> None:
    """Let Ctrl-C end this process at once, without clean-up, until `restore_interrupt`.

    The same if SIGINT was ignored, as in what a script starts by `&`: servers would heed it anyway,
    see `stop_on_signals`. Without effect if it has another handler than Python's default.

    Args:
        name: start of the printed line.
    """

    def end(_: int, __: FrameType | None) -> None:
        try:
            os.write(2, f"{name}: interrupted\n".encode())
        finally:
            os._exit(EXIT_INTERRUPTED)

    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_IGN):
        signal.signal(signal.SIGINT, end)
        _ours.append(end)


def restore_interrupt() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again; without effect if `exit_on_interrupt` had none."""
    if signal.getsignal(signal.SIGINT) in _ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_ours: list[object] = []

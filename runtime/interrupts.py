"""Makes Ctrl-C during the imports of a command line print one line and exit with code 130.

During imports, a KeyboardInterrupt would print a traceback, or be lost in a callback of the import
system. So Ctrl-C ends the process without an exception until the imports are done. This module
itself must import quickly.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

EXIT_INTERRUPTED = 128 + signal.SIGINT

_program = ""
_interrupted = False


def exit_on_interrupt(name: str) -> None:
    """Let Ctrl-C end this process at once, without clean-up, until `restore_interrupt`.

    Programs that a script starts with `&` begin with SIGINT ignored. SIGINT ends them, too, because
    servers handle it in any case (`stop_on_signals`). If the process has a SIGINT handler of its
    own already, this function has no effect.

    Args:
        name: program name, with which the printed line starts.
    """
    global _program
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_IGN):
        _program = name
        signal.signal(signal.SIGINT, _exit)


def restore_interrupt() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, if `exit_on_interrupt` has changed that."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, _raise)


def interrupt_came() -> bool:
    """Return whether Ctrl-C has raised KeyboardInterrupt since `restore_interrupt`.

    The exception itself may be lost: commands import modules, and an import may suppress it or
    replace it by another one, as the import of numpy does.
    """
    return _interrupted


def _exit(_: int, __: FrameType | None) -> None:
    try:
        os.write(2, f"{_program}: interrupted\n".encode())
    finally:
        os._exit(EXIT_INTERRUPTED)


def _raise(_: int, __: FrameType | None) -> None:
    global _interrupted
    _interrupted = True
    raise KeyboardInterrupt

"""Descriptors 0, 1 and 2, and the text that a program writes to them."""

from __future__ import annotations

import io
import os
import re
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console

#: Control characters of terminals, except tabs and line feeds.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def escape_control_characters(text: str) -> str:
    r"""Return the text with control characters escaped (as \x1b), so that terminals ignore them.

    Use it for text of unknown origin: logs, events, names and messages from the network.
    """
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def print_plainly(console: Console, text: str) -> None:
    """Print a line unchanged: brackets are no markup, and `:x:` is no emoji."""
    console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


def open_standard_fds() -> None:
    """Open descriptors 0, 1 and 2 if they are closed.

    Otherwise the next file that is opened would get such a number, and children would inherit that
    file as their input or output. A trainer that runs as a daemon, or was started with `<&-`, may
    have closed these descriptors.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def open_standard_streams() -> None:
    """Open closed standard descriptors, stdout and stderr; what is written to them is discarded.

    Without descriptor 1 or 2 (`>&-` in a shell), Python sets `sys.stdout` or `sys.stderr` to None.
    `print(..., file=sys.stderr)` would then write to stdout.
    """
    open_standard_fds()
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def write_whole_lines() -> None:
    """Write each printed line at once and in one piece.

    With `python -u` or PYTHONUNBUFFERED, `print` writes each argument separately, and logs of other
    threads get in between. Without these settings, the last output of a killed program is lost.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)

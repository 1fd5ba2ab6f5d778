"""Descriptors 0, 1 and 2, and what a program writes to them."""

from __future__ import annotations

import io
import os
import re
import sys
from typing import Final

#: What terminals obey rather than show, but for tabs and ends of lines.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    r"""The text with each control character as \x1b and the like, so that it steers no terminal.

    For what others wrote: logs, events, names and messages from the network.
    """
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def hold_standard_fds() -> None:
    """Let 0, 1 and 2 be taken: what a child inherits under such a number would be its output.

    A trainer that was made a daemon, or started with `<&-`, may have closed them.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def write_whole_lines() -> None:
    """From now on, each line that is printed goes out at once and in one piece.

    With `python -u`, or PYTHONUNBUFFERED, `print` writes each of its words by itself, and what
    another thread logs to the same pipe meanwhile stands between them; without, what a killed
    program printed last is lost.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)

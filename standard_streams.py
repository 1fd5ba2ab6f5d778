"""Descriptors 0, 1 and 2, and what a program writes to them."""

from __future__ import annotations

import io
import os
import sys


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

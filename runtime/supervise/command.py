"""Commands: a program with its arguments, its environment and the file for its output."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Command:
    """A program to start as a child.

    Attributes:
        name: its name in messages and names of threads.
        argv: program and arguments; a program without a slash is looked up on PATH.
        env: environment variables, added to those of this process.
        cwd: working directory; None: that of this process.
        log: file to which all output is appended; a tail is also kept in memory.
        pass_fds: descriptors that it inherits, with the same numbers.
        guard: run it under a guard, because it does not call `end_with_parent()` itself.
        orphan_grace_s: seconds from SIGTERM to SIGKILL for a guarded program after its parent died.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    log: Path | None = None
    pass_fds: tuple[int, ...] = ()
    guard: bool = False
    orphan_grace_s: float = 10.0

    def arguments(self) -> list[str]:
        """Return the executed arguments, including those of the guard."""
        if not self.guard:
            return list(self.argv)
        guard = [sys.executable, "-P", "-m", "edl.runtime.supervise", str(self.orphan_grace_s)]
        return [*guard, *self.argv]


def python_command(name: str, module: str, *args: object, **options: Any) -> Command:
    """Create a Command for `python -m module args...` with this interpreter.

    `-P` keeps the working directory off the module path. `-u` makes output unbuffered, so that the
    last lines of a killed child are not lost. `options` are fields of Command.
    """
    argv = (sys.executable, "-P", "-u", "-m", module, *(str(arg) for arg in args))
    return Command(name, argv, **options)

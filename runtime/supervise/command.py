"""What to run: the program, its arguments, and where its output goes."""

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
        name: what messages and threads call it.
        argv: program and arguments; a program without a slash is looked up on PATH.
        env: variables set on top of this process's own environment.
        cwd: its working directory; this process's own by default.
        log: file to which all of its output is appended, besides the tail kept in memory.
        pass_fds: descriptors that it inherits under the same numbers.
        guard: True for a program that does not call `end_with_parent()` itself.
        orphan_grace_s: a guarded program whose parent died gets this long between TERM and KILL.
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
        """The argument list that is really executed."""
        if not self.guard:
            return list(self.argv)
        guard = [sys.executable, "-P", "-m", "edl.runtime.supervise", str(self.orphan_grace_s)]
        return [*guard, *self.argv]


def python_command(name: str, module: str, *args: object, **options: Any) -> Command:
    """`python -m module args...` with this interpreter, as a Command.

    `-P` keeps the working directory off the module path; `-u` hands over at once what is printed,
    so that the last words of a killed child are there. Options are Command's fields.
    """
    argv = (sys.executable, "-P", "-u", "-m", module, *(str(arg) for arg in args))
    return Command(name, argv, **options)

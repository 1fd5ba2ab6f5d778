"""Child processes. Only this folder starts long-running processes, so that none is left behind.

Each child has its own session and process group (Ctrl-C at a terminal reaches only the parent), and
its output is kept. It ends with its parent: only the parent holds the write end of a pipe, so the
child reads end of file when the parent dies, in whatever way. Our own programs watch that pipe:
they call `end_with_parent()` at their start. Foreign programs run under a guard that watches it
(`Command(guard=True)`). A process that outlives its parent is a `Background`.
"""

from .identity import Identity, identity_of, wait_gone
from .life import drop_fd_on_fork, end_with_parent
from .process import (
    Background,
    Command,
    Process,
    describe_exit,
    python_command,
    start,
    stop_all,
    wait_all,
)
from .restarter import Restarter

__all__ = [
    "Background",
    "Command",
    "Identity",
    "Process",
    "Restarter",
    "describe_exit",
    "drop_fd_on_fork",
    "end_with_parent",
    "identity_of",
    "python_command",
    "start",
    "stop_all",
    "wait_all",
    "wait_gone",
]

"""Child processes: the only folder that starts any, so that none is ever left behind.

Every child stands in a session and process group of its own (Ctrl-C at a terminal reaches only the
parent), its output is kept, and it ends with its parent: a pipe of which only the parent holds the
write end reports end of file when the parent dies, by whatever death. Our own programs watch that
pipe by calling `end_with_parent()` first thing; foreign ones run under a guard that does it for
them (`Command(guard=True)`). One that is to outlive its parent is a `Background`.
"""

from .background import Background
from .command import Command, python_command
from .identity import Identity, identity_of, wait_gone
from .keeper import Keeper, full_jitter_s
from .life import end_with_parent, own_fd
from .process import Process, describe_exit, start, stop_all

__all__ = [
    "Background",
    "Command",
    "Identity",
    "Keeper",
    "Process",
    "describe_exit",
    "end_with_parent",
    "full_jitter_s",
    "identity_of",
    "own_fd",
    "python_command",
    "start",
    "stop_all",
    "wait_gone",
]

"""Child processes of a benchmark, with a channel to each, and the cores they run on."""

from __future__ import annotations

import contextlib
import os
from contextlib import ExitStack
from typing import Any, Final

from ..proto.channel import Channel
from ..runtime.errors import ProcessFailed
from ..runtime.supervise import python_command, start

#: Number that stands for no particular core.
ANY_CORE: Final = -1


class Child:
    """A process that gets the descriptor of a channel as its first argument.

    Args:
        stack: kills the process when it is closed.
        name: name of the process, for messages.
        module: module that the process runs.
        arguments: command-line arguments after the descriptor.

    Raises:
        ProcessFailed: the process cannot be started.
    """

    def __init__(self, stack: ExitStack, name: str, module: str, *arguments: object) -> None:
        self._channel, fd = Channel.pair()
        stack.callback(self._channel.close)
        self._name = name
        try:
            process = start(python_command(name, module, fd, *arguments, pass_fds=(fd,)))
        finally:
            os.close(fd)
        stack.callback(process.kill)
        self._messages = iter(self._channel)

    def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Send a message and wait for the answer; raise ProcessFailed if the process ended."""
        self._channel.send(kind, **fields)
        return self.receive()

    def receive(self) -> dict[str, Any]:
        """Wait for the next message; raise ProcessFailed if the process ended."""
        for message in self._messages:
            return dict(message)
        raise ProcessFailed(f"{self._name} ended by itself")


def two_cores() -> tuple[int, int]:
    """Return two different cores; twice `ANY_CORE` if this process cannot choose two."""
    if not hasattr(os, "sched_getaffinity"):
        return ANY_CORE, ANY_CORE
    cores = sorted(os.sched_getaffinity(0))
    return (cores[0], cores[1]) if len(cores) > 1 else (ANY_CORE, ANY_CORE)


def two_cores_text() -> str:
    """Return the cores of `two_cores` in the form of `pin_to`, for sides that share both."""
    return ",".join(map(str, two_cores()))


def pin_to(cores: str) -> None:
    """Pin this process, and processes that it starts later, to cores such as "0,1".

    A list with only `ANY_CORE` changes nothing.
    """
    chosen = {int(core) for core in cores.split(",")} - {ANY_CORE}
    if chosen:
        os.sched_setaffinity(0, chosen)


def pin_threads(pid: int, core: int) -> None:
    """Pin all threads of a process, and threads that they start later, to `core`."""
    if core != ANY_CORE:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(ProcessLookupError):  # the thread has ended
                os.sched_setaffinity(int(thread), {core})

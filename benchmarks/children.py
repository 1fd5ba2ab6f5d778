"""Processes that a benchmark starts and talks to over a channel, and the cores they run on."""

from __future__ import annotations

import contextlib
import os
from contextlib import ExitStack
from typing import Any, Final

from ..proto.channel import Channel
from ..runtime.errors import ProcessFailed
from ..runtime.supervise import python_command, start

#: Stands for no core in particular.
ANY_CORE: Final = -1


class Child:
    """One process, started with the descriptor of a channel as its first argument.

    Args:
        ending: ends it.
        name: for messages.
        module: what it runs.
        arguments: behind the descriptor.

    Raises:
        ProcessFailed: it cannot be started.
    """

    def __init__(self, ending: ExitStack, name: str, module: str, *arguments: object) -> None:
        self._channel, fd = Channel.pair()
        ending.callback(self._channel.close)
        self._name = name
        try:
            process = start(python_command(name, module, fd, *arguments, pass_fds=(fd,)))
        finally:
            os.close(fd)
        ending.callback(process.kill)
        self._messages = iter(self._channel)

    def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Tell it something and wait for its answer."""
        self._channel.send(kind, **fields)
        return self.hear()

    def hear(self) -> dict[str, Any]:
        """The next that it says; raises ProcessFailed when it has ended."""
        for message in self._messages:
            return dict(message)
        raise ProcessFailed(f"{self._name} ended by itself")


def two_cores() -> tuple[int, int]:
    """Two cores to keep sides apart, or twice `ANY_CORE` where there are not two to choose."""
    if not hasattr(os, "sched_getaffinity"):
        return ANY_CORE, ANY_CORE
    cores = sorted(os.sched_getaffinity(0))
    return (cores[0], cores[1]) if len(cores) > 1 else (ANY_CORE, ANY_CORE)


def two_cores_shared() -> str:
    """The same two for sides that the system places, as `stay_on` takes them."""
    return ",".join(map(str, two_cores()))


def stay_on(cores: str) -> None:
    """Have this process, and those that it starts, run on these cores only: "0,1", or any."""
    chosen = {int(core) for core in cores.split(",")} - {ANY_CORE}
    if chosen:
        os.sched_setaffinity(0, chosen)


def move_to(pid: int, core: int) -> None:
    """Have every thread of a process run on `core`, and those that they start."""
    if core != ANY_CORE:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(int(thread), {core})

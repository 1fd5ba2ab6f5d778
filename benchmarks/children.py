"""Child processes of benchmarks, each with a channel to this process, and the cores they run on.

`python -m edl.benchmarks.children CHANNEL FUNCTION` runs such a child. CHANNEL is the descriptor of
its end of the channel. The first message has the arguments of FUNCTION (`module:name`).
"""

from __future__ import annotations

import importlib
import os
import select
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Concatenate, Final, ParamSpec

from ..mesh.cores import available_cores
from ..proto.channel import Channel, Message
from ..runtime.errors import EdlError, ProcessFailed
from ..runtime.supervise import describe_exit, end_with_parent, python_command, start

P = ParamSpec("P")

#: Longest wait in seconds for a message of a child: longer than any measurement of a benchmark.
_ANSWER_S: Final = 600.0
#: Longest wait in seconds for the exit code and last line of a child that has closed its channel.
_EXIT_S: Final = 5.0


class Child:
    """A process that calls a function. The function gets the process's end of a channel.

    Args:
        stack: kills the process when it is closed.
        name: name of the process, for messages.
        function: function of a module that the process imports.
        arguments: further arguments of the function; JSON carries them, so tuples become lists.
        named: keyword arguments of the function.

    Raises:
        ProcessFailed: the process cannot be started.
    """

    def __init__(
        self,
        stack: ExitStack,
        name: str,
        function: Callable[Concatenate[Channel, P], None],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> None:
        self._channel, fd = Channel.pair()
        stack.callback(self._channel.close)
        self._name = name
        path = f"{function.__module__}:{function.__name__}"
        try:
            self._process = start(python_command(name, __name__, fd, path, pass_fds=(fd,)))
        finally:
            os.close(fd)
        stack.callback(self._process.kill)
        self.tell("call", arguments=arguments, named=named)

    def tell(self, kind: str, **fields: Any) -> None:
        """Send a message."""
        self._channel.send(kind, **fields)

    def receive(self) -> Message:
        """Wait for the next message; raise ProcessFailed if the process ended or does not answer.

        The process must send one message for each request: `Channel` buffers further messages,
        where this method does not see them.
        """
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        if not poll.poll(1000 * _ANSWER_S):
            raise ProcessFailed(f"{self._name} has not answered within {_ANSWER_S:g} s")
        message = self._channel.receive()
        if message is not None:
            return message
        code = self._process.wait(_EXIT_S)
        how = "closed its channel" if code is None else describe_exit(code)
        last_line = self._process.last_line
        raise ProcessFailed(f"{self._name} {how}{f': {last_line}' if last_line else ''}")

    def ask(self, kind: str, **fields: Any) -> Message:
        """Send a message and wait for the answer; see `receive`."""
        self.tell(kind, **fields)
        return self.receive()


def two_cores() -> tuple[int, int]:
    """Return two cores that this process may use; twice the same one if there is only one."""
    first, *others = sorted(available_cores())
    return first, (others or [first])[0]


def divided_cores(student_cores: int) -> tuple[list[int], list[int]]:
    """Return `student_cores` cores for the student, and the remaining cores for everything else.

    If no cores remain, both get all cores.
    """
    cores = sorted(available_cores())
    if student_cores >= len(cores):
        return cores, cores
    return cores[-student_cores:], cores[:-student_cores]


def main(fd: int, path: str) -> None:
    """Call the function `path` with the channel and the arguments of its first message."""
    end_with_parent(at_once=True)
    channel = Channel.attach(fd)
    call = channel.receive()
    if call is None:  # the benchmark has ended
        return
    module, _, name = path.partition(":")
    function = getattr(importlib.import_module(module), name)
    try:
        function(channel, *call["arguments"], **call["named"])
    except EdlError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

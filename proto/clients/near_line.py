"""A line through a teacher's door for who has one thread: it neither sends nor hears by waiting."""

from __future__ import annotations

from typing import Final

import numpy as np

from ..doors import LENGTH, Invitation
from .door_line import enter

#: What an answer may claim to be long: no more is allocated for it.
_MOST_BYTES: Final = 1 << 31
#: Of a request: its length, and what it says.
_PARTS: Final = 2


class NearLine:
    """Requests out, answers in the order of the requests. Entering waits, nothing else does.

    Raises:
        OSError: nobody lets us in by that door, or it is not the teacher's.
    """

    def __init__(self, invitation: Invitation) -> None:
        self._socket = enter(invitation)
        self._socket.setblocking(False)
        self._came = _memory(LENGTH.size)  # what is read into: all of the next answer, mostly
        self._filled = 0
        self._unsent: list[bytes] = []

    def fileno(self) -> int:
        return self._socket.fileno()

    def put(self, message: bytes) -> bool:
        """Have a request go out with the next `send`; whether it is the only one by now."""
        self._unsent += (LENGTH.pack(len(message)), message)
        return len(self._unsent) == _PARTS

    def send(self) -> None:
        """Send what was put; raises OSError where it does not go out at once and as a whole."""
        whole = b"".join(self._unsent)
        self._unsent.clear()
        if self._socket.send(whole) < len(whole):
            raise BlockingIOError("the teacher reads no requests")

    def hear(self) -> list[memoryview]:
        """The answers of which all is here; raises OSError once there will be no more.

        An answer is mostly as long as the one before it. So room is made for such a one, and it
        comes with its length by one call.
        """
        try:
            count = self._socket.recv_into(self._came[self._filled :])
        except BlockingIOError:
            return []
        if not count:
            raise ConnectionResetError("the teacher has closed it")
        self._filled += count
        answers = []
        while (nbytes := self._announced()) <= self._filled:
            whole, more = self._came, self._filled - nbytes
            answers.append(whole[LENGTH.size : nbytes].toreadonly())
            self._came, self._filled = _memory(max(nbytes, more)), more
            self._came[:more] = whole[nbytes : nbytes + more]
        if nbytes > len(self._came):
            self._came, came = _memory(nbytes), self._came
            self._came[: self._filled] = came[: self._filled]
        return answers

    def _announced(self) -> int:
        """Bytes of the next answer and its length, as far as they are known."""
        if self._filled < LENGTH.size:
            return LENGTH.size
        nbytes: int = LENGTH.unpack_from(self._came)[0]
        if nbytes > _MOST_BYTES:
            raise ConnectionAbortedError(f"the teacher announces {nbytes} bytes")
        return LENGTH.size + nbytes

    def close(self) -> None:
        """Nothing more is asked; again without effect."""
        self._socket.close()


def _memory(nbytes: int) -> memoryview:
    """Memory that nothing is written into beforehand."""
    return np.empty(nbytes, np.uint8).data

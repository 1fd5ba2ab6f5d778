"""Messages behind their lengths, cut out of what a socket brings; it knows no socket."""

from __future__ import annotations

from typing import Final

from ...proto.doors import LENGTH
from ..refusals import TooLarge

#: There is room for so much at first, and again once it is empty: a few small requests.
_ROOM_BYTES: Final = 4 << 10


class Frames:
    """What has come over one connection and has not been taken.

    Its memory grows with what has come, not with what a length announces.

    Args:
        most_bytes: of one message.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held = memoryview(bytearray(_ROOM_BYTES))
        self._begin = self._end = 0

    @property
    def are_empty(self) -> bool:
        """Whether nothing is held, not even a part of a message."""
        return self._begin == self._end

    @property
    def announced(self) -> int:
        """Bytes of the message that comes; 0: its length is not there yet."""
        if self._end < self._begin + LENGTH.size:
            return 0
        (nbytes,) = LENGTH.unpack_from(self._held, self._begin)
        return int(nbytes)

    def room(self) -> memoryview:
        """Where the next bytes are to be put, at least one."""
        if self._end == len(self._held):
            kept = self._held[self._begin : self._end]
            self._held = memoryview(bytearray(max(2 * len(kept), _ROOM_BYTES)))
            self._held[: len(kept)] = kept
            self._begin, self._end = 0, len(kept)
        return self._held[self._end :]

    def came(self, nbytes: int) -> None:
        """So many bytes have been put there."""
        self._end += nbytes

    def take(self, nbytes: int) -> bytes | None:
        """The next bytes, so many; None: they have not all come."""
        if self._end - self._begin < nbytes:
            return None
        self._begin += nbytes
        taken = bytes(self._held[self._begin - nbytes : self._begin])
        if self._begin == self._end:
            self._begin = self._end = 0
            if len(self._held) > _ROOM_BYTES:
                self._held = memoryview(bytearray(_ROOM_BYTES))
        return taken

    def message(self) -> bytes | None:
        """The next message; None: it has not all come.

        Raises:
            TooLarge: it is longer than may be.
        """
        behind, nbytes = self._begin + LENGTH.size, self.announced
        if self._end < behind:
            return None
        if nbytes > self._most_bytes:
            raise TooLarge(
                f"a request is larger than max ({nbytes} vs. {self._most_bytes}): split the batch"
            )
        if self._end - behind < nbytes:
            return None
        self._begin = behind
        return self.take(nbytes)

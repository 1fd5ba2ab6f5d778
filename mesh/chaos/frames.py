"""The frames of an HTTP/2 connection (RFC 9113, section 4), cut from the bytes that come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

_HEADER_BYTES = 9
_DATA = 0
_PADDED = 0x8
#: gRPC's own prefix of a message: a byte that says whether it is compressed, and its length.
_PREFIX_BYTES = 5


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame.

    Attributes:
        kind: its type; 0 is data.
        flags: of its type.
        stream: the stream it belongs to, with the reserved bit as it came.
        payload: the rest.
    """

    kind: int
    flags: int
    stream: int
    payload: bytes

    def encode(self) -> bytes:
        """As it goes over the wire."""
        head = len(self.payload).to_bytes(3, "big") + bytes((self.kind, self.flags))
        return head + self.stream.to_bytes(4, "big") + self.payload

    def message(self) -> bytes | None:
        """The one whole, uncompressed gRPC message in it; None where it holds anything else."""
        if self.kind != _DATA or self.flags & _PADDED or len(self.payload) < _PREFIX_BYTES:
            return None
        compressed, length = self.payload[0], int.from_bytes(self.payload[1:_PREFIX_BYTES], "big")
        if compressed or length != len(self.payload) - _PREFIX_BYTES:
            return None
        return self.payload[_PREFIX_BYTES:]

    def with_message(self, message: bytes) -> Self:
        """The same frame around another message."""
        payload = bytes(1) + len(message).to_bytes(4, "big") + message
        return type(self)(self.kind, self.flags, self.stream, payload)


class Cutter:
    """Cuts what a server sends into frames, however it arrives."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are whole now, in order."""
        self._rest += data
        frames: list[Frame] = []
        while len(self._rest) >= _HEADER_BYTES:
            end = _HEADER_BYTES + int.from_bytes(self._rest[:3], "big")
            if len(self._rest) < end:
                break
            head, payload = self._rest[:_HEADER_BYTES], self._rest[_HEADER_BYTES:end]
            frames.append(Frame(head[3], head[4], int.from_bytes(head[5:], "big"), payload))
            self._rest = self._rest[end:]
        return frames

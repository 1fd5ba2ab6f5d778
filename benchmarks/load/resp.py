"""A minimal asyncio client of the Redis protocol, cheap enough for thousands of members."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self

from ...runtime.errors import RedisUnavailable

#: Called with a reply as it is on the wire, or with the error that prevented it.
OnReply = Callable[[bytes | RedisUnavailable], None]


class RespConnection(asyncio.Protocol):
    """A connection to Redis. Requests may overlap; replies come in the order of the requests."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[OnReply] = deque()
        self._received = b""

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        """Connect; raise OSError if that fails."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, host, port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := _end_of_reply(self._received)) is not None:
            reply, self._received = self._received[:end], self._received[end:]
            self._waiting.popleft()(reply)

    def connection_lost(self, error: Exception | None) -> None:
        while self._waiting:
            self._waiting.popleft()(RedisUnavailable(f"the connection to Redis broke ({error})"))

    def post(self, packet: bytes, *on_replies: OnReply) -> None:
        """Send encoded commands together, without waiting for their replies.

        Args:
            packet: encoded commands.
            on_replies: a callback for the reply of each command.

        Raises:
            RedisUnavailable: the connection is closed.
        """
        if self._transport is None or self._transport.is_closing():
            raise RedisUnavailable("the connection to Redis is closed")
        self._waiting.extend(on_replies)
        self._transport.write(packet)

    async def ask(self, command: bytes) -> bytes:
        """Send one encoded command; return its reply as it is on the wire.

        Raises:
            RedisUnavailable: the connection is closed, or breaks before the reply.
        """
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def settle(reply: bytes | RedisUnavailable) -> None:
            if future.done():
                return
            if isinstance(reply, bytes):
                future.set_result(reply)
            else:
                future.set_exception(reply)

        self.post(command, settle)
        return await future

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def command(*words: object) -> bytes:
    """Encode a command."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    body = b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
    return b"*%d\r\n%b" % (len(parts), body)


def integers(reply: bytes) -> list[int]:
    """Decode an integer, or an array of integers.

    Raises:
        RedisUnavailable: the reply is something else, such as an error; the message quotes it.
    """
    lines = reply.split(b"\r\n")[:-1]
    numbers = lines[1:] if reply.startswith(b"*") else lines
    if not numbers or not all(line.startswith(b":") for line in numbers):
        raise RedisUnavailable(f"Redis answers {reply[:200]!r}")
    return [int(line[1:]) for line in numbers]


def text(reply: bytes) -> str:
    """Decode a string; raise RedisUnavailable, quoting the reply, if it is something else."""
    if reply.startswith(b"$"):
        return reply.split(b"\r\n", 1)[1][:-2].decode()
    raise RedisUnavailable(f"Redis answers {reply[:200]!r}")


def _end_of_reply(data: bytes, start: int = 0) -> int | None:
    """Return the end of the reply that begins at `start`; None if it is incomplete."""
    line = data.find(b"\r\n", start)
    if line < 0:
        return None
    kind, end = data[start : start + 1], line + 2
    if kind == b"*":
        for _ in range(int(data[start + 1 : line])):
            part = _end_of_reply(data, end)
            if part is None:
                return None
            end = part
    elif kind == b"$" and data[start + 1 : line] != b"-1":  # $-1: null, without a body
        end += int(data[start + 1 : line]) + 2
    return end if len(data) >= end else None

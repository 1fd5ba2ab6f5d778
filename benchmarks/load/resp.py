"""Redis's protocol as cheaply as asyncio can: a crowd must not cost more than Redis itself."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self

from ...runtime.errors import RegistryUnavailable

#: Takes a reply as it is on the wire, or why there is none.
OnReply = Callable[[bytes | RegistryUnavailable], None]


class RespConnection(asyncio.Protocol):
    """One connection to Redis; requests may overlap, replies come in their order."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[OnReply] = deque()
        self._received = b""

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        """Connect, or raise OSError."""
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
            self._waiting.popleft()(RegistryUnavailable(f"Redis has gone ({error})"))

    def post(self, packet: bytes, *on_replies: OnReply) -> None:
        """Send a packet of commands now, and nothing else with it; each command has one reply."""
        if self._transport is None or self._transport.is_closing():
            raise RegistryUnavailable("the connection to Redis is closed")
        self._waiting.extend(on_replies)
        self._transport.write(packet)

    async def ask(self, command: bytes) -> bytes:
        """Send one command, and wait for its reply as it is on the wire."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def settle(reply: bytes | RegistryUnavailable) -> None:
            if answer.done():
                return
            if isinstance(reply, bytes):
                answer.set_result(reply)
            else:
                answer.set_exception(reply)

        self.post(command, settle)
        return await answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def command(*words: object) -> bytes:
    """A command as Redis reads it."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    body = b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
    return b"*%d\r\n%b" % (len(parts), body)


def integers(reply: bytes) -> list[int]:
    """The number, or the array of numbers, in a reply.

    Raises:
        RegistryUnavailable: it is something else, such as an error; its words are in the message.
    """
    lines = reply.split(b"\r\n")[:-1]
    numbers = lines[1:] if reply.startswith(b"*") else lines
    if not numbers or not all(line.startswith(b":") for line in numbers):
        raise RegistryUnavailable(f"Redis answers {reply[:200]!r}")
    return [int(line[1:]) for line in numbers]


def text(reply: bytes) -> str:
    """The string in a reply; raises RegistryUnavailable with Redis's words when it is none."""
    if reply.startswith(b"$"):
        return reply.split(b"\r\n", 1)[1][:-2].decode()
    raise RegistryUnavailable(f"Redis answers {reply[:200]!r}")


def _end_of_reply(data: bytes, start: int = 0) -> int | None:
    """Where the reply that begins at `start` ends; None while it has not come whole."""
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
    elif kind == b"$" and data[start + 1 : line] != b"-1":  # -1: the string that there is not
        end += int(data[start + 1 : line]) + 2
    return end if len(data) >= end else None

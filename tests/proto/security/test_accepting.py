"""Connections are counted from the moment they come, and their handshakes have a deadline."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from edl.proto.security import Acceptor, TlsFiles, listening, reloading_context
from edl.tests.proto.security.authority import Authority
from edl.tests.waiting import DEADLINE_S


class Standing(asyncio.Protocol):
    """The server's side of a connection: echoes."""

    def __init__(self, among: list[Standing]) -> None:
        self.among = among

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.among.append(self)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.among.remove(self)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def is_answered(self) -> bool:
        self.writer.write(b"x")
        return await asyncio.wait_for(self.reader.read(1), DEADLINE_S) == b"x"

    async def is_over(self) -> bool:
        try:
            return await asyncio.wait_for(self.reader.read(1), DEADLINE_S) == b""
        except ConnectionError:
            return True


class Bench:
    """An acceptor, and clients of it; with `may_end` its oldest connection is ended for another."""

    def __init__(self, files: TlsFiles | None = None, most: int = 8, may_end: bool = True) -> None:
        self.files, self.most, self.may_end = files, most, may_end
        self.standing: list[Standing] = []
        self.clients: list[Client] = []

    async def connect(self, context: ssl.SSLContext | None = None) -> Client:
        """A connection; without a context it says nothing by itself."""
        made = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        self.clients.append(Client(*made))
        return self.clients[-1]

    def make_room(self) -> bool:
        standing = [one for one in self.standing if not one.transport.is_closing()]
        if self.may_end and standing:
            standing[0].transport.abort()
        return self.may_end and bool(standing)

    def run(self, steps: Callable[[Bench], Awaitable[None]]) -> None:
        asyncio.run(self._run(steps))

    async def _run(self, steps: Callable[[Bench], Awaitable[None]]) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        acceptor = Acceptor(
            listener,
            lambda: Standing(self.standing),
            None if self.files is None else reloading_context(self.files),
            most=self.most,
            standing=lambda: len(self.standing),
            make_room=self.make_room,
        )
        acceptor.start()
        try:
            await steps(self)
        finally:
            acceptor.close()
            for transport in [one.transport for one in self.standing]:
                transport.abort()
            for client in self.clients:
                client.writer.transport.abort()
            await asyncio.sleep(0)


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return Authority(tmp_path).issue("server")


def test_a_handshake_has_a_deadline(files: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "HANDSHAKE_S", 0.05)

    async def steps(bench: Bench) -> None:
        assert await (await bench.connect()).is_over()

    Bench(files).run(steps)


@pytest.mark.parametrize(("handshakes", "most"), [(2, 8), (8, 2)])
def test_the_oldest_handshake_makes_room(
    files: TlsFiles, monkeypatch: pytest.MonkeyPatch, handshakes: int, most: int
) -> None:
    monkeypatch.setattr(listening, "HANDSHAKES", handshakes)

    async def steps(bench: Bench) -> None:
        silent = [await bench.connect() for _ in range(2)]
        client = await bench.connect(ssl.create_default_context(cafile=str(files.ca)))
        assert await client.is_answered()
        assert await silent[0].is_over()

    Bench(files, most=most, may_end=False).run(steps)


@pytest.mark.parametrize("may_end", [True, False])
def test_connections_are_bounded(may_end: bool) -> None:
    """One of those that stand is ended for a new one, or that is closed."""

    async def steps(bench: Bench) -> None:
        first, second = [await bench.connect() for _ in range(2)]
        assert await first.is_answered()
        assert await second.is_answered()
        third = await bench.connect()
        ended, stays = (first, third) if may_end else (third, first)
        assert await ended.is_over()
        assert await stays.is_answered()

    Bench(most=2, may_end=may_end).run(steps)


def test_of_a_burst_all_get_the_places_of_idle_connections() -> None:
    async def steps(bench: Bench) -> None:
        idle = [await bench.connect() for _ in range(3)]
        for client in idle:
            assert await client.is_answered()
        burst = await asyncio.gather(*(bench.connect() for _ in range(3)))
        for client in burst:
            assert await client.is_answered()

    Bench(most=3).run(steps)


def test_no_descriptors_left_is_said_once_and_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept, failures = asyncio.SelectorEventLoop.sock_accept, iter(range(2))

    async def failing(
        loop: asyncio.SelectorEventLoop, listener: socket.socket
    ) -> tuple[socket.socket, object]:
        if next(failures, None) is not None:
            raise OSError(errno.EMFILE, "too many open files")
        return await accept(loop, listener)

    async def steps(bench: Bench) -> None:
        assert await (await bench.connect()).is_answered()

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_accept", failing)
    Bench().run(steps)
    assert caplog.messages == ["no connection can be accepted now: [Errno 24] too many open files"]

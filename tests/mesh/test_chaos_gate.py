"""A gate between two sockets: what passes, what does not, and that nothing is left of it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from edl.mesh.chaos.gate import Gate

WAIT_S = 10.0
#: Long enough that something that is to pass would have passed.
QUIET_S = 0.2


class Echo:
    """Sends back what comes, in capitals."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                one, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(one,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, one: socket.socket) -> None:
        with one, suppress(OSError):
            while data := one.recv(1 << 16):
                one.sendall(data.upper())

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(WAIT_S)


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.close()


@pytest.fixture
def gate(echo: Echo) -> Iterator[Gate]:
    with Gate("test", echo.address) as gate:
        yield gate


@pytest.fixture
def client(gate: Gate) -> Iterator[socket.socket]:
    with connect(gate) as client:
        yield client


def connect(gate: Gate) -> socket.socket:
    host, _, port = gate.address.partition(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_S)


def ask(client: socket.socket, words: bytes = b"hello") -> bytes:
    client.sendall(words)
    answer = b""
    while len(answer) < len(words) and (data := client.recv(1 << 16)):
        answer += data
    return answer


def test_everything_passes_both_ways(client: socket.socket) -> None:
    assert ask(client) == b"HELLO"
    long = bytes(range(97, 123)) * 20_000
    assert ask(client, long) == long.upper()


def test_silence_holds_back_and_breaks_nothing(gate: Gate, client: socket.socket) -> None:
    gate.silence()
    client.settimeout(QUIET_S)
    with pytest.raises(TimeoutError):
        ask(client)
    client.settimeout(WAIT_S)
    assert gate.struck == 1
    gate.heal()
    assert client.recv(5) == b"HELLO"


def test_a_silent_gate_lets_connect_and_says_nothing(gate: Gate) -> None:
    gate.silence()
    with connect(gate) as client:
        client.sendall(b"hello")
        client.settimeout(QUIET_S)
        with pytest.raises(TimeoutError):
            client.recv(5)
        gate.heal()
        client.settimeout(WAIT_S)
        assert client.recv(5) == b"HELLO"


def test_delay_is_on_the_way_there_and_back(gate: Gate, client: socket.socket) -> None:
    gate.delay(0.1)
    began = time.monotonic()
    assert ask(client) == b"HELLO"
    assert time.monotonic() - began >= 0.2
    gate.heal()
    assert ask(client) == b"HELLO"
    assert gate.struck == 2, "there and back, and none since it is healed"


@pytest.mark.parametrize("silent", [False, True])
def test_cut_ends_what_there_is_and_lets_in_what_comes(
    gate: Gate, client: socket.socket, silent: bool
) -> None:
    assert ask(client) == b"HELLO"
    if silent:
        gate.silence()
    gate.cut()
    assert gate.struck == 1
    assert client.recv(5) == b""
    gate.heal()
    with connect(gate) as another:
        assert ask(another) == b"HELLO"


def test_without_a_target_a_connection_ends_at_once() -> None:
    # Nobody listens at the gate's own port on the other address of loopback.
    with Gate("test") as gate, connect(gate) as client:
        assert client.recv(5) == b""


def test_what_comes_back_goes_through_what_each_connection_has(echo: Echo) -> None:
    with (
        Gate("test", echo.address, answers=lambda: lambda data: data[::-1]) as gate,
        connect(gate) as client,
    ):
        assert ask(client) == b"OLLEH"


def test_closing_wakes_whoever_waits_and_leaves_no_thread(echo: Echo) -> None:
    gate = Gate("closing", echo.address)
    with connect(gate) as client:
        assert ask(client) == b"HELLO"
        gate.silence()
        gate.close()
        gate.close()
        assert client.recv(5) == b""
    assert not [one for one in threading.enumerate() if one.name == "edl-gate-closing"]

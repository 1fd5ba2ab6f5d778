"""A gate between two sockets, and the director of faults that strikes through it."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from edl.mesh.chaos.director import Director
from edl.mesh.chaos.faults import BY_NAME, Fault
from edl.mesh.chaos.gate import Gate
from edl.mesh.chaos.lies import Liar
from edl.mesh.chaos.plan import Stage
from edl.tests.mesh.test_chaos_lies import LABELS, PROOF, heard, result

WAIT_S = 60.0
#: Long enough that something that is to pass would have passed.
QUIET_S = 0.2


@pytest.fixture
def echo() -> Iterator[str]:
    """The address of a server that sends back what comes, in capitals."""
    threads: list[threading.Thread] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                one, _ = listener.accept()
                threads.append(threading.Thread(target=serve, args=(one,), daemon=True))
                threads[-1].start()

    def serve(one: socket.socket) -> None:
        with one, suppress(OSError):
            while data := one.recv(1 << 16):
                one.sendall(data.upper())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        for thread in (accepting, *threads):
            thread.join(WAIT_S)


@pytest.fixture
def gate(echo: str) -> Iterator[Gate]:
    with Gate("test", echo) as gate:
        yield gate


def connect(gate: Gate) -> socket.socket:
    host, _, port = gate.address.partition(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_S)


def ask(client: socket.socket, words: bytes = b"hello") -> bytes:
    client.sendall(words)
    answer = b""
    while len(answer) < len(words) and (data := client.recv(1 << 16)):
        answer += data
    return answer


@pytest.mark.parametrize("connected", [True, False])
def test_silence_holds_back_and_breaks_nothing(gate: Gate, connected: bool) -> None:
    if not connected:
        gate.silence()
    with connect(gate) as client:
        gate.silence()
        client.settimeout(QUIET_S)
        with pytest.raises(TimeoutError):
            ask(client)
        gate.heal()
        client.settimeout(WAIT_S)
        assert client.recv(5) == b"HELLO"
        assert gate.struck == 1


def test_delay_is_on_the_way_there_and_back(gate: Gate) -> None:
    with connect(gate) as client:
        gate.delay(0.01)
        assert ask(client) == b"HELLO"
        gate.heal()
        assert ask(client) == b"HELLO"
    assert gate.struck == 2, "there and back, and none since it is healed"


@pytest.mark.parametrize("silent", [False, True])
def test_cut_ends_what_there_is_and_lets_in_what_comes(gate: Gate, silent: bool) -> None:
    with connect(gate) as client:
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


def test_closing_wakes_whoever_waits_and_leaves_no_thread(echo: str) -> None:
    gate = Gate("closing", echo)
    with connect(gate) as client:
        assert ask(client) == b"HELLO"
        gate.silence()
        gate.close()
        gate.close()
        assert client.recv(5) == b""
    assert not [one for one in threading.enumerate() if one.name == "edl-gate-closing"]


STAGE = Stage(60.0, ("t1", "t2", "t3"), (), ("s1",), 2.0)


class Stand:
    """A director, and the gate of a teacher whose socket sends one answer to each connection."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        port = self.listener.getsockname()[1]
        self.liar = Liar(seed=1)
        self.door = Gate("t1", f"127.0.0.1:{port}", answers=self.liar.connection)
        doors = {"door": self.door, "line": self.door, "liar": self.liar}
        teacher = SimpleNamespace(process=object(), serves=True, **doors)
        cast: Any = SimpleNamespace(teachers={"t1": teacher}, manager_door=self.door)
        self.director = Director(cast, STAGE, itertools.count(step=60).__next__)

    def rows(self) -> int:
        """How many rows of labels somebody who comes through the gate is given."""
        sent = PROOF + result(1, described=True)
        with socket.create_connection(("127.0.0.1", self.door.port), WAIT_S) as client:
            server, _ = self.listener.accept()
            with server:
                server.sendall(sent)
            came = b"".join(iter(lambda: client.recv(1 << 16), b""))
        return len(heard(came[len(PROOF) :], 1)[1].outputs["soft"])

    def close(self) -> None:
        self.door.close()
        self.listener.close()


@pytest.fixture
def stand() -> Iterator[Stand]:
    stand = Stand()
    yield stand
    stand.close()


def fault(kind: str, number: int = 1) -> Fault:
    return Fault(number, 0.0, kind, "t1", 1.0)


@pytest.mark.parametrize("kind", [name for name, kind in BY_NAME.items() if kind.meets])
def test_what_met_nothing_was_without_effect(kind: str, stand: Stand) -> None:
    assert stand.director.begin(fault(kind)) == ""
    stand.director.heal(fault(kind))
    (done,) = stand.director.done
    assert done.healed_s is not None
    assert done.in_vain


def test_what_met_something_says_how_much_and_counts_nothing_of_before(stand: Stand) -> None:
    rows = []
    for number, kind in enumerate(("answer-shape", "delay-teacher", "answer-shape"), 1):
        one = fault(kind, number)
        stand.director.begin(one)
        rows.append(stand.rows())
        stand.director.heal(one)
    assert [done.effects for done in stand.director.done] == [1, 1, 1]
    assert rows == [len(LABELS) - 1, len(LABELS), len(LABELS) - 1]

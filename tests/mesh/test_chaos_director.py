"""What carries faults out notes whether there was anything for them to strike."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from edl.mesh.chaos.director import Director
from edl.mesh.chaos.faults import BY_NAME, Fault
from edl.mesh.chaos.frames import Frame
from edl.mesh.chaos.gate import Gate
from edl.mesh.chaos.lies import Liar
from edl.mesh.chaos.plan import Stage
from edl.proto import tensors
from edl.tests.mesh.test_chaos_lies import ANSWER

WAIT_S = 10.0
#: Of a frame of HTTP/2, and of the gRPC message in it.
HEAD_BYTES = 9 + 5
STAGE = Stage(60.0, ("t1", "t2", "t3"), (), ("s1",), 2.0)


class Stand:
    """A teacher whose socket sends one answer to each connection, and who else is needed.

    Everything but the gates and the liar is a stand-in: no process is struck here.
    """

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        port = self.listener.getsockname()[1]
        self.liar = Liar(seed=1)
        self.door = Gate("t1", f"127.0.0.1:{port}", answers=self.liar.connection)
        teacher = SimpleNamespace(
            process=object(), serves=True, door=self.door, line=self.door, liar=self.liar
        )
        cast: Any = SimpleNamespace(teachers={"t1": teacher}, manager_door=self.door)
        self.director = Director(cast, STAGE, itertools.count(step=60).__next__)

    def answer(self) -> tensors.InferResponse:
        """What somebody who comes through the gate is given."""
        sent = Frame(0, 1, 3, b"").with_message(ANSWER).encode()
        with socket.create_connection(("127.0.0.1", self.door.port), WAIT_S) as client:
            server, _ = self.listener.accept()
            with server:
                server.sendall(sent)
            came = b"".join(iter(lambda: client.recv(1 << 16), b""))
        return tensors.decode_response(came[HEAD_BYTES:])

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


def delay(director: Director) -> None:
    director.begin(fault("delay-teacher", 2))


def lie(director: Director) -> None:
    director.begin(fault("answer-shape", 2))


@pytest.mark.parametrize("strike", [delay, lie])
def test_what_met_something_says_how_much_and_counts_nothing_of_before(
    strike: Callable[[Director], None], stand: Stand
) -> None:
    earlier = fault("answer-shape")
    stand.director.begin(earlier)
    spoilt = stand.answer()
    stand.director.heal(earlier)
    whole = stand.answer()
    assert len(spoilt.outputs["soft"]) == len(whole.outputs["soft"]) - 1
    strike(stand.director)
    stand.answer()
    stand.director.heal(stand.director.done[-1].fault)
    assert [done.effects for done in stand.director.done] == [1, 1]


def test_connections_that_are_cut_are_counted(stand: Stand) -> None:
    with socket.create_connection(("127.0.0.1", stand.door.port), WAIT_S) as client:
        server, _ = stand.listener.accept()
        with server:
            server.sendall(Frame(1, 0, 1, b"").encode())
            assert len(client.recv(1 << 16)) == 9
            stand.director.begin(fault("break-teacher"))
    (done,) = stand.director.done
    assert done.effects == 1
    assert not done.in_vain

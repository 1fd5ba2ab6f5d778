"""A gate between two sockets, the lies that it tells, and the director who strikes through it."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from random import Random
from socketserver import BaseRequestHandler, ThreadingTCPServer
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.errors import RetryableError, WireError
from edl.mesh.chaos.director import Director
from edl.mesh.chaos.faults import BY_NAME, Fault
from edl.mesh.chaos.gate import Gate
from edl.mesh.chaos.lies import LIES, Liar
from edl.mesh.chaos.plan import Stage
from edl.proto import frames
from edl.proto.arena import Array
from edl.proto.clients import LabelRequest, LabelResponse
from edl.proto.clients.transport import TransportConnection
from edl.proto.frames import REPLY_BYTES, FramedTensor, ResultDescription

WAIT_S = 60.0
#: Long enough that something that is to pass would have passed.
QUIET_S = 0.2


class Capitals(BaseRequestHandler):
    def handle(self) -> None:
        with suppress(OSError):
            while data := self.request.recv(1 << 16):
                self.request.sendall(data.upper())


@pytest.fixture
def echo() -> Iterator[str]:
    with ThreadingTCPServer(("127.0.0.1", 0), Capitals) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.02,))
        serving.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        serving.join()


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
def test_silence_and_delay_hold_back_and_break_nothing(gate: Gate, connected: bool) -> None:
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
        gate.delay(0.01)
        assert ask(client) == b"HELLO"
        gate.heal()
        assert ask(client) == b"HELLO"
        assert gate.struck == 3, "there and back, and none since it is healed"


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


def test_closing_wakes_whoever_waits_and_leaves_no_thread(echo: str) -> None:
    gate = Gate("closing", echo)
    with connect(gate) as client:
        assert ask(client) == b"HELLO"
        gate.silence()
        gate.close()
        gate.close()
        assert client.recv(5) == b""
    # Nobody listens at the gate's own port on the other address of loopback.
    with Gate("closing") as aimless, connect(aimless) as client:
        assert client.recv(5) == b""
    assert not [one for one in threading.enumerate() if one.name == "edl-gate-closing"]


ROWS, CLASSES = 4, 6
LABELS = np.arange(ROWS * CLASSES, dtype=np.float32).reshape(ROWS, CLASSES)
DESCRIPTION = ResultDescription(
    (FramedTensor("soft", "FP32", 2),), {"teacher_id": "t1", "incarnation": "1700000000001"}
)
PROOF = bytes(range(REPLY_BYTES))


def result(number: int, labels: Array = LABELS, *, described: bool = False) -> bytes:
    """A teacher's answer to a request, as it goes over the wire."""
    told = DESCRIPTION.to_bytes() if described else b""
    pieces = frames.result_frame(number, {"soft": labels}, told, device_s=0.01, draining=False)
    return b"".join(bytes(one) for one in pieces)


REFUSED = frames.error_frame(9, RetryableError("busy"))
#: What a teacher sends by one connection: only its first result has the description.
SAID = PROOF + result(1, described=True) + REFUSED + result(2) + frames.goaway_frame()


def heard(said: bytes, *numbers: int) -> dict[int, LabelResponse]:
    """The answers that a reader takes from these frames. Raises WireError where they are none."""
    ours, theirs = socket.socketpair()
    with closing(theirs):
        ours.setblocking(False)
        connection = TransportConnection(ours, "chaos", None)
        for number in numbers:
            connection.put(number, LabelRequest({"x": np.zeros((ROWS, 2), np.float32)}), 9.0, {})
        connection.send()
        theirs.sendall(said)
        theirs.shutdown(socket.SHUT_WR)
        answers: dict[int, LabelResponse] = {}
        with closing(connection), suppress(ConnectionError):
            while len(answers) < len(numbers):
                for one in connection.receive():
                    assert isinstance(one.outcome, LabelResponse)
                    answers[one.number] = one.outcome
        return answers


def spoilt(kind: str, seed: int = 1, labels: Array = LABELS) -> LabelResponse:
    liar = Liar(seed)
    liar.tell(kind)
    said = liar.connection()(PROOF + result(1, labels, described=True))
    return heard(said[REPLY_BYTES:], 1)[1]


def test_each_lie_spoils_an_answer_in_its_way() -> None:
    labels = spoilt("answer-nan").outputs["soft"]
    assert (np.isnan(labels).sum(), labels.shape) == (1, LABELS.shape)
    np.testing.assert_array_equal(spoilt("answer-shape").outputs["soft"], LABELS[1:])
    np.testing.assert_array_equal(
        spoilt("answer-other").outputs["soft"], np.roll(LABELS, -1, axis=0)
    )
    told = spoilt("answer-instance").parameters
    assert (told["incarnation"], told["teacher_id"]) == ("1700000000002", "t1")
    single = spoilt("answer-other", labels=LABELS[:1]).outputs["soft"]
    np.testing.assert_array_equal(single, np.roll(LABELS[:1], -1, axis=1))


def test_a_flipped_bit_never_makes_a_wrong_label_that_looks_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng, right = Random(), result(1, described=True)
    # All but the labels and the eight bytes of the number.
    bits = 8 * (len(right) - LABELS.nbytes - 8)
    fates = set()
    for bit in range(bits):
        monkeypatch.setattr(rng, "randrange", lambda count, bit=bit: bit if count == bits else None)
        liar = Liar(0)
        monkeypatch.setattr(liar, "_rng", rng)
        liar.tell("answer-flip")
        said = liar.connection()(PROOF + right)[REPLY_BYTES:]
        assert sum((a ^ b).bit_count() for a, b in zip(said, right, strict=True)) == 1
        try:
            answers = heard(said, 1)
        except WireError:
            fates.add("unreadable")
            continue
        fates.add("readable" if answers else "never whole")
        for answer in answers.values():
            for labels in answer.outputs.values():
                if labels.shape == LABELS.shape and labels.dtype == LABELS.dtype:
                    np.testing.assert_array_equal(labels, LABELS)
    assert fates == {"unreadable", "readable", "never whole"}


def test_a_liar_lies_only_while_it_is_told_to() -> None:
    liar = Liar(seed=1)
    through = liar.connection()
    assert through(PROOF + result(1, described=True)) == PROOF + result(1, described=True)
    liar.tell("answer-instance")
    spoilt = through(result(2))
    assert liar.spoilt == 1
    liar.tell(None)
    honest = through(result(3)) + through(result(4))
    assert liar.spoilt == 1
    answers = heard(result(1, described=True) + spoilt + honest, 1, 2, 3, 4)
    told = [answers[number].parameters["incarnation"] for number in (1, 2, 3, 4)]
    assert told == ["1700000000001", "1700000000002", "1700000000001", "1700000000001"]


@given(st.sampled_from([None, *LIES]), st.lists(st.integers(1, 40)))
def test_frames_come_through_whole_however_they_arrive(kind: str | None, sizes: list[int]) -> None:
    def sent(pieces: list[bytes]) -> bytes:
        liar = Liar(seed=1)
        liar.tell(kind)
        through = liar.connection()
        return b"".join(through(one) for one in pieces)

    pieces, rest = [], SAID
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    assert sent([*pieces, rest]) == sent([SAID])
    assert (sent([SAID]) == SAID) == (kind is None)
    no_result = PROOF + REFUSED + frames.goaway_frame()
    assert sent([no_result]) == no_result, "only results are spoilt"


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


@pytest.fixture
def stand() -> Iterator[Stand]:
    stand = Stand()
    with stand.listener, stand.door:
        yield stand


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

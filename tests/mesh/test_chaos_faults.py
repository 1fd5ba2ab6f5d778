"""The proxy of a chaos run, the responses that it corrupts, and the injector that controls it."""

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

from edl.mesh.chaos.fault_injector import FaultInjector
from edl.mesh.chaos.fault_plan import KIND_BY_NAME, ChaosSettings, Fault
from edl.mesh.chaos.proxy import ChaosProxy
from edl.mesh.chaos.response_corruptor import CORRUPTIONS, ResponseCorruptor
from edl.proto import frames
from edl.proto.arena import Array
from edl.proto.clients import LabelRequest, LabelResponse
from edl.proto.clients.transport import TransportConnection
from edl.proto.frames import REPLY_BYTES, FramedTensor, ResultDescription
from edl.runtime.errors import RetryableError, WireError
from edl.tests.waiting import DEADLINE_S, wait_until

#: Long enough that something that is to pass would have passed.
QUIET_S = 0.2


class UppercaseHandler(BaseRequestHandler):
    def handle(self) -> None:
        with suppress(OSError):
            while data := self.request.recv(1 << 16):
                self.request.sendall(data.upper())


@pytest.fixture
def echo() -> Iterator[str]:
    with ThreadingTCPServer(("127.0.0.1", 0), UppercaseHandler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.02,))
        serving.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        serving.join()


@pytest.fixture
def proxy(echo: str) -> Iterator[ChaosProxy]:
    with closing(ChaosProxy("test", echo)) as proxy:
        yield proxy


def connect(proxy: ChaosProxy) -> socket.socket:
    host, _, port = proxy.address.partition(":")
    return socket.create_connection((host, int(port)), timeout=DEADLINE_S)


def ask(client: socket.socket, words: bytes = b"hello") -> bytes:
    client.sendall(words)
    answer = b""
    while len(answer) < len(words) and (data := client.recv(1 << 16)):
        answer += data
    return answer


@pytest.mark.parametrize("connected", [True, False])
def test_held_and_delayed_data_arrives_in_the_end(proxy: ChaosProxy, connected: bool) -> None:
    if not connected:
        proxy.hold()
    with connect(proxy) as client:
        proxy.hold()
        client.settimeout(QUIET_S)
        with pytest.raises(TimeoutError):
            ask(client)
        wait_until(lambda: proxy.effects == 1)  # a slow proxy gets the data later
        proxy.heal()
        client.settimeout(DEADLINE_S)
        assert client.recv(5) == b"HELLO"
        assert proxy.effects == 1
        proxy.delay(0.01)
        assert ask(client) == b"HELLO"
        proxy.heal()
        assert ask(client) == b"HELLO"
        assert proxy.effects == 3, "both directions, and none after it was healed"


@pytest.mark.parametrize("held", [False, True])
def test_open_connections_are_closed_and_new_ones_accepted(proxy: ChaosProxy, held: bool) -> None:
    with connect(proxy) as client:
        assert ask(client) == b"HELLO"
        if held:
            proxy.hold()
        proxy.close_connections()
        assert proxy.effects == 1
        assert client.recv(5) == b""
    proxy.heal()
    with connect(proxy) as another:
        assert ask(another) == b"HELLO"


def test_close_wakes_clients_and_leaves_no_thread(echo: str) -> None:
    proxy = ChaosProxy("closing", echo)
    with connect(proxy) as client:
        assert ask(client) == b"HELLO"
        proxy.hold()
        proxy.close()
        proxy.close()
        assert client.recv(5) == b""
    # Nothing listens at the proxy's own port on the other address of loopback.
    with closing(ChaosProxy("closing")) as without_target, connect(without_target) as client:
        assert client.recv(5) == b""
    assert not [one for one in threading.enumerate() if one.name == "edl-proxy-closing"]


ROWS, CLASSES = 4, 6
LABELS = np.arange(ROWS * CLASSES, dtype=np.float32).reshape(ROWS, CLASSES)
DESCRIPTION = ResultDescription(
    (FramedTensor("soft", "FP32", 2),), {"teacher_id": "t1", "incarnation": "1700000000001"}
)
PROOF = bytes(range(REPLY_BYTES))


def result(number: int, labels: Array = LABELS, *, described: bool = False) -> bytes:
    """A teacher's response to a request, as it goes over the wire."""
    told = DESCRIPTION.to_bytes() if described else b""
    pieces = frames.result_frame(number, {"soft": labels}, told, device_s=0.01, draining=False)
    return b"".join(bytes(one) for one in pieces)


REFUSED = frames.error_frame(9, RetryableError("busy"))
#: Bytes of one connection of a teacher: only the first result has the description.
SENT = PROOF + result(1, described=True) + REFUSED + result(2) + frames.goaway_frame()


def responses_in(sent: bytes, *numbers: int) -> dict[int, LabelResponse]:
    """Parse a teacher's frames as a reader does. Raises WireError if they are invalid."""
    ours, theirs = socket.socketpair()
    with closing(theirs):
        ours.setblocking(False)
        connection = TransportConnection(ours, "chaos", None)
        for number in numbers:
            connection.put(number, LabelRequest({"x": np.zeros((ROWS, 2), np.float32)}), 9.0, {})
        connection.send()
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        answers: dict[int, LabelResponse] = {}
        with closing(connection), suppress(ConnectionError):
            while len(answers) < len(numbers):
                for one in connection.receive():
                    assert isinstance(one.outcome, LabelResponse)
                    answers[one.number] = one.outcome
        return answers


def corrupted(kind: str, seed: int = 1, labels: Array = LABELS) -> LabelResponse:
    corruptor = ResponseCorruptor(seed)
    corruptor.use(kind)
    said = corruptor.new_filter()(PROOF + result(1, labels, described=True))
    return responses_in(said[REPLY_BYTES:], 1)[1]


def test_each_corruption_changes_a_response_in_its_way() -> None:
    labels = corrupted("answer-nan").outputs["soft"]
    assert (np.isnan(labels).sum(), labels.shape) == (1, LABELS.shape)
    np.testing.assert_array_equal(corrupted("answer-shape").outputs["soft"], LABELS[1:])
    np.testing.assert_array_equal(
        corrupted("answer-other").outputs["soft"], np.roll(LABELS, -1, axis=0)
    )
    told = corrupted("answer-instance").parameters
    assert (told["incarnation"], told["teacher_id"]) == ("1700000000002", "t1")
    single = corrupted("answer-other", labels=LABELS[:1]).outputs["soft"]
    np.testing.assert_array_equal(single, np.roll(LABELS[:1], -1, axis=1))


def test_a_flipped_bit_never_makes_a_wrong_label_that_looks_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng, right = Random(), result(1, described=True)
    # Everything but the labels and the eight bytes of the request number.
    bits = 8 * (len(right) - LABELS.nbytes - 8)
    fates = set()
    for bit in range(bits):
        monkeypatch.setattr(rng, "randrange", lambda count, bit=bit: bit if count == bits else None)
        corruptor = ResponseCorruptor(0)
        monkeypatch.setattr(corruptor, "_rng", rng)
        corruptor.use("answer-flip")
        said = corruptor.new_filter()(PROOF + right)[REPLY_BYTES:]
        assert sum((a ^ b).bit_count() for a, b in zip(said, right, strict=True)) == 1
        try:
            answers = responses_in(said, 1)
        except WireError:
            fates.add("unreadable")
            continue
        fates.add("readable" if answers else "never whole")
        for answer in answers.values():
            for labels in answer.outputs.values():
                if labels.shape == LABELS.shape and labels.dtype == LABELS.dtype:
                    np.testing.assert_array_equal(labels, LABELS)
    assert fates == {"unreadable", "readable", "never whole"}


def test_responses_are_corrupted_only_while_a_corruption_is_set() -> None:
    corruptor = ResponseCorruptor(seed=1)
    through = corruptor.new_filter()
    assert through(PROOF + result(1, described=True)) == PROOF + result(1, described=True)
    corruptor.use("answer-instance")
    corrupted = through(result(2))
    assert corruptor.effects == 1
    corruptor.heal()
    honest = through(result(3)) + through(result(4))
    assert corruptor.effects == 1
    answers = responses_in(result(1, described=True) + corrupted + honest, 1, 2, 3, 4)
    told = [answers[number].parameters["incarnation"] for number in (1, 2, 3, 4)]
    assert told == ["1700000000001", "1700000000002", "1700000000001", "1700000000001"]


@given(st.sampled_from([None, *CORRUPTIONS]), st.lists(st.integers(1, 40)))
def test_frames_come_through_whole_however_they_arrive(kind: str | None, sizes: list[int]) -> None:
    def sent(pieces: list[bytes]) -> bytes:
        corruptor = ResponseCorruptor(seed=1)
        if kind is not None:
            corruptor.use(kind)
        through = corruptor.new_filter()
        return b"".join(through(one) for one in pieces)

    pieces, rest = [], SENT
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    assert sent([*pieces, rest]) == sent([SENT])
    assert (sent([SENT]) == SENT) == (kind is None)
    no_result = PROOF + REFUSED + frames.goaway_frame()
    assert sent([no_result]) == no_result, "only results are corrupted"


SETTINGS = ChaosSettings(seed=1, seconds=60.0, teachers=3, students=1)


class InjectorFixture:
    """An injector, and the proxy of a teacher that sends one response over each connection."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        port = self.listener.getsockname()[1]
        corruptor = ResponseCorruptor(seed=1)
        self.proxy = ChaosProxy("t1", f"127.0.0.1:{port}", response_filter=corruptor.new_filter)
        teacher = SimpleNamespace(
            process=object(),
            is_ready=True,
            proxies=(self.proxy,),
            redis_proxy=self.proxy,
            corruptor=corruptor,
        )
        mesh: Any = SimpleNamespace(
            teachers={"t1": teacher}, processes={"t1": teacher}, manager_proxy=self.proxy
        )
        self.injector = FaultInjector(mesh, SETTINGS, itertools.count(step=60).__next__)

    def rows(self) -> int:
        """Number of rows of labels that a client of the proxy receives."""
        sent = PROOF + result(1, described=True)
        with socket.create_connection(("127.0.0.1", self.proxy.port), DEADLINE_S) as client:
            server, _ = self.listener.accept()
            with server:
                server.sendall(sent)
            came = b"".join(iter(lambda: client.recv(1 << 16), b""))
        return len(responses_in(came[len(PROOF) :], 1)[1].outputs["soft"])


@pytest.fixture
def fixture() -> Iterator[InjectorFixture]:
    fixture = InjectorFixture()
    with fixture.listener, closing(fixture.proxy):
        yield fixture


def fault(kind: str, number: int = 1) -> Fault:
    return Fault(number, 0.0, kind, "t1", 1.0)


@pytest.mark.parametrize("kind", [name for name, kind in KIND_BY_NAME.items() if kind.effect_unit])
def test_a_fault_that_meets_no_traffic_is_without_effect(
    kind: str, fixture: InjectorFixture
) -> None:
    assert fixture.injector.inject(fault(kind)) == ""
    fixture.injector.heal(fault(kind))
    (done,) = fixture.injector.records
    assert done.healed_s is not None
    assert done.without_effect


def test_effects_of_earlier_faults_are_not_counted(fixture: InjectorFixture) -> None:
    rows = []
    for number, kind in enumerate(("answer-shape", "delay-teacher", "answer-shape"), 1):
        one = fault(kind, number)
        fixture.injector.inject(one)
        rows.append(fixture.rows())
        fixture.injector.heal(one)
    assert [done.effects for done in fixture.injector.records] == [1, 1, 1]
    assert rows == [len(LABELS) - 1, len(LABELS), len(LABELS) - 1]

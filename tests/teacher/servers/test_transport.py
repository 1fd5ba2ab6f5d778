"""Strangers and liars at the port of the transport, and at a reader's connection."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import select
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edl.proto import frames
from edl.proto.arena import Array
from edl.proto.clients import LabelRequest, LabelResponse
from edl.proto.clients.oip_grpc import OipGrpcClient
from edl.proto.clients.transport import ConnectionEnded, TransportConnection, connect
from edl.proto.frames import FramedTensor, FrameHeader, OpenFrame, ResultDescription, TransportOffer
from edl.proto.shared_buffer import key_of
from edl.runtime.errors import RateLimited, RequestRefused, WireError
from edl.teacher.backends import ModelSpec
from edl.teacher.config import ServerConfig
from edl.teacher.predictor_jobs import RequestLabels
from edl.teacher.request import RequestedOutput
from edl.teacher.servers import transport_connection, transport_listener
from edl.teacher.servers.admission import SendingDeadline
from edl.teacher.servers.callers import CallCredentials
from edl.teacher.servers.servicer import RequestSpec
from edl.teacher.servers.transport_session import TransportSession
from edl.tests.teacher.bench import WAIT_S, Bench, Held, Make
from edl.tests.teacher.fakes import array
from edl.tests.waiting import wait_until

RECEIVE_S = ServerConfig().receive_s
X = array(30, 4)
OPEN = OpenFrame("resnet", (FramedTensor("x", "FP32", 2),)).frame()
OPEN_BOOL = OpenFrame("resnet", (FramedTensor("x", "BOOL", 2),)).frame()
#: Two of them are more than a MiB.
LARGE = np.zeros((40_000, 4), np.float32)
#: Large enough that an answer is not taken by the buffers of a socket.
HUGE = np.ones((260_000, 4), np.float32)


def request_frame(x: Array = X, number: int = 1, more: int = 0) -> bytes:
    """A request that announces `more` bytes than it has."""
    head = frames.pack_shapes([x.shape])
    header = FrameHeader(frames.REQUEST, 0, len(head), len(x), number, x.nbytes + more, 9.0)
    return header.pack() + head + x.tobytes()


def placed_frame(nbytes: int = 0) -> bytes:
    """A request for a batch at a place in memory that nobody has lent."""
    head = frames.pack_shapes([X.shape]) + frames.BUFFER_LOCATION.pack(64, 7, 56)
    flags = frames.IN_SHARED_MEMORY
    return FrameHeader(frames.REQUEST, flags, len(head), len(X), 1, nbytes, 9.0).pack() + head


def offered(bench: Bench) -> TransportOffer:
    with closing(OipGrpcClient(bench.address, "resnet")) as client:
        client.probe(WAIT_S)
        found = client._fetch_offer()  # noqa: SLF001 - the only way to an offer that is not used
    assert found is not None
    return found


def stranger(bench: Bench, data: bytes = b"") -> socket.socket:
    """A connection that has sent `data`, and proved nothing."""
    made = socket.create_connection(("127.0.0.1", offered(bench).port), WAIT_S)
    bench.at_end.callback(made.close)
    made.sendall(data)
    return made


def known(bench: Bench, data: bytes = b"") -> socket.socket:
    """A connection that is open, and has sent `data`."""
    made = connect("127.0.0.1", offered(bench), None, WAIT_S, unix=False)
    made.settimeout(WAIT_S)
    bench.at_end.callback(made.close)
    made.sendall(data)
    return made


def at_work(bench: Bench, request: bytes) -> tuple[socket.socket, Held]:
    """An open connection whose request the model has, and holds."""
    made, held = known(bench, OPEN), bench.hold()
    made.sendall(request)
    held.wait()
    return made, held


def is_ended(connection: socket.socket) -> bool:
    with suppress(ConnectionError):
        while connection.recv(1 << 16):
            pass
    return True


def has_ended_or_sent(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


def answer_of(connection: socket.socket) -> tuple[FrameHeader, bytes]:
    """One frame: its header and its payload."""
    header = FrameHeader.unpack(received(connection, frames.HEADER.size))
    received(connection, header.head_bytes)
    return header, received(connection, header.nbytes)


def received(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        assert more, "the connection ended"
        data += more
    return data


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n\r\n" + bytes(100), frames.MAGIC + bytes(frames.HELLO_BYTES), bytes(100)],
)
def test_who_knows_no_offer_is_sent_away(bench: Bench, data: bytes) -> None:
    assert is_ended(stranger(bench, data))
    bench.infer()


def test_an_offer_is_used_up_by_a_wrong_proof(bench: Bench) -> None:
    found = offered(bench)
    hello = frames.MAGIC + found.session + secrets.token_bytes(frames.CHALLENGE_BYTES)
    connection = stranger(bench, hello)
    received(connection, frames.REPLY_BYTES)
    connection.sendall(bytes(frames.PROOF_BYTES))
    assert is_ended(connection)
    assert is_ended(stranger(bench, hello))


def test_an_unproven_server_gets_nothing(ending: ExitStack) -> None:
    server = ending.enter_context(socket.create_server(("127.0.0.1", 0)))
    found = TransportOffer.new(1, server.getsockname()[1], "")
    pool = ending.enter_context(ThreadPoolExecutor(1))
    asked = pool.submit(connect, "127.0.0.1", found, None, WAIT_S, unix=False)
    connection = ending.enter_context(server.accept()[0])
    assert found.secret not in received(connection, frames.HELLO_BYTES)
    connection.sendall(bytes(frames.REPLY_BYTES))
    assert connection.recv(1) == b""
    with pytest.raises(ConnectionAbortedError, match="another server"):
        asked.result(WAIT_S)


def test_who_sends_nothing_is_ended_in_time(bench: Bench) -> None:
    idle = known(bench, OPEN + request_frame())
    assert answer_of(idle)[0].kind == frames.RESULT
    half_request = known(bench, OPEN + request_frame()[:-1])
    for late in (half_request, stranger(bench), stranger(bench, frames.MAGIC)):
        bench.advance_until(partial(has_ended_or_sent, late), RECEIVE_S)
        assert is_ended(late)
    idle.sendall(request_frame())
    assert answer_of(idle)[0].kind == frames.RESULT


def test_the_oldest_stranger_makes_room(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_listener, "_MAX_UNPROVED", 3)
    first, *others = [stranger(bench) for _ in range(4)]
    assert is_ended(first)
    for connection in others:
        assert not select.select([connection], [], [], 0.05)[0]


def test_answers_bear_the_numbers_of_their_requests(make: Make) -> None:
    bench = make(slots=8)
    connection, held = at_work(bench, request_frame(number=7))
    bench.heal()
    connection.sendall(request_frame(X + 1, number=8))
    first = answer_of(connection)[0]
    held.release()
    second = answer_of(connection)[0]
    assert (first.number, second.number) == (8, 7)
    assert (first.kind, second.kind) == (frames.RESULT,) * 2


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (request_frame(), "before an OPEN frame"),
        (OPEN + b"GET / HTTP/1.1" + bytes(40), "not begin a frame"),
        (OPEN + frames.goaway_frame(), "readers send no frame"),
        (OPEN + request_frame(more=1), "announced"),
        (OPEN + placed_frame(nbytes=1 << 63), "announces bytes"),
        (OPEN + FrameHeader(frames.REQUEST, 0, 8, 1, 1, 8, 0.0).pack() + bytes(16), "shorter"),
        (FrameHeader(frames.OPEN, 0, 0, 0, 0, 7, 0.0).pack() + b"garbage", "no JSON"),
        (FrameHeader(frames.OPEN, 0, 0, 0, 0, 1 << 20, 0.0).pack(), "readers send no frame"),
    ],
)
def test_malformed_frames_end_it(bench: Bench, data: bytes, words: str) -> None:
    connection = known(bench, data)
    header, payload = answer_of(connection)
    assert (header.kind, header.number) == (frames.ERROR, 0)
    assert words in str(frames.read_error(payload))
    assert is_ended(connection)
    wait_until(lambda: bench.open_calls == 0)
    bench.infer()


@pytest.mark.parametrize(
    "wrong",
    [
        OPEN + request_frame(array(3, 5)),
        OPEN + placed_frame(),
        OPEN_BOOL + request_frame(np.full((3, 4), 2, np.uint8)),
    ],
    ids=["another shape", "not lent", "BOOL of 2"],
)
def test_a_wrong_request_spoils_no_other(bench: Bench, wrong: bytes) -> None:
    connection = known(bench, wrong + OPEN + request_frame(number=2))
    headers = [answer_of(connection)[0] for _ in range(2)]
    answers = {header.number: header.kind for header in headers}
    assert answers == {1: frames.ERROR, 2: frames.RESULT}


@pytest.fixture
def narrow(make: Make) -> Bench:
    """A server that has room for one large request."""
    return make(max_message_bytes=1 << 20, request_bytes=1 << 20, slots=8)


@pytest.fixture
def roomy(make: Make) -> Make:
    return partial(make, max_message_bytes=16 << 20, request_bytes=64 << 20, slots=8)


def test_a_request_without_room_spoils_no_other(narrow: Bench) -> None:
    connection, held = at_work(narrow, request_frame(LARGE, number=1))
    too_large = np.zeros((100_000, 4), np.float32)
    connection.sendall(request_frame(LARGE, number=2) + request_frame(too_large, number=3))
    for number, kind in ((2, RateLimited), (3, RequestRefused)):
        header, payload = answer_of(connection)
        assert (header.kind, header.number) == (frames.ERROR, number)
        assert isinstance(frames.read_error(payload), kind)
    connection.sendall(request_frame(number=4))
    held.release()
    answers = {answer_of(connection)[0].number for _ in range(2)}
    assert answers == {1, 4}


def test_half_of_a_request_counts_in_the_limits(narrow: Bench) -> None:
    """Also behind another one that was answered."""
    memory = narrow.labeller.inputs
    before = memory.used_bytes
    for _ in range(4):
        half = request_frame(LARGE, number=2)[:-1]
        connection = known(narrow, OPEN + request_frame(number=1) + half)
        while answer_of(connection)[0].number != 1:
            pass  # the other one was refused at once
    wait_until(lambda: narrow.recorder.in_flight == 0)
    assert LARGE.nbytes <= memory.used_bytes - before <= 1 << 20


def test_half_of_a_request_has_a_deadline_of_its_own(roomy: Make) -> None:
    """While an answer waits to be read, that of the answer ends the connection."""
    bench = roomy()
    memory = bench.labeller.inputs
    before = memory.used_bytes
    connection, held = at_work(bench, request_frame(HUGE, number=1))
    half = request_frame(HUGE, number=2)
    connection.sendall(half[: len(half) // 2])
    wait_until(lambda: memory.used_bytes >= before + 2 * HUGE.nbytes)
    held.release()
    wait_until(lambda: bench.requests("answered") == 1)
    bench.advance_until(lambda: memory.used_bytes == before, RECEIVE_S)
    assert is_ended(connection)


def test_half_of_a_request_may_wait_for_an_answer_that_is_taken_slowly(
    roomy: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_connection, "_SEND_BYTES", 1 << 16)
    bench = roomy()
    connection = known(bench, OPEN)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    held = bench.hold()
    connection.sendall(request_frame(HUGE, number=1))
    held.wait()
    used, frame = bench.labeller.inputs.used_bytes, request_frame(number=2)
    connection.sendall(frame[:-1])
    wait_until(lambda: bench.labeller.inputs.used_bytes > used)
    held.release()
    wait_until(lambda: bench.requests("answered") == 1)
    answer = b""
    for _ in range(4):
        bench.advance(0.6 * RECEIVE_S)
        answer += received(connection, 1 << 20)
    header = FrameHeader.unpack(answer)
    received(connection, frames.HEADER.size + header.head_bytes + header.nbytes - len(answer))
    connection.sendall(frame[-1:])
    assert (header.number, answer_of(connection)[0].number) == (1, 2)


def test_a_request_that_comes_is_not_cut_off_for_another_one(narrow: Bench) -> None:
    frame = request_frame(LARGE)
    first = known(narrow, OPEN + frame[:-1])
    wait_until(lambda: narrow.labeller.inputs.used_bytes > 0)
    header, payload = answer_of(known(narrow, OPEN + frame[:-1]))
    assert header.kind == frames.ERROR
    assert isinstance(frames.read_error(payload), RateLimited)
    first.sendall(frame[-1:])
    assert answer_of(first)[0].kind == frames.RESULT


def test_a_teacher_that_leaves_answers_what_it_has_begun_to_receive(
    roomy: Make, ending: ExitStack
) -> None:
    """And the end of the connection takes no answer away, whatever still comes."""
    bench = roomy()
    connection, held = at_work(bench, request_frame(number=1))
    frame = request_frame(LARGE, number=2)
    half = len(frame) // 2
    connection.sendall(frame[:half])
    wait_until(lambda: bench.labeller.inputs.used_bytes >= LARGE.nbytes)
    pool = ending.enter_context(ThreadPoolExecutor(1))
    stopping = pool.submit(bench.server.stop, 2 * WAIT_S)
    assert answer_of(connection)[0].kind == frames.GOAWAY
    connection.sendall(frame[half:] + 30 * request_frame(LARGE, number=3))
    held.release()
    assert {answer_of(connection)[0].number for _ in range(2)} == {1, 2}
    assert is_ended(connection)
    connection.close()
    stopping.result(WAIT_S)


def test_inputs_keep_their_memory_while_the_model_reads_them(make: Make) -> None:
    """Also where nobody waits for the labels any more."""
    bench = make(slots=8)
    memory, before = bench.labeller.inputs, bench.labeller.inputs.used_bytes
    connection, held = at_work(bench, request_frame())
    connection.close()
    wait_until(lambda: bench.open_calls == 0 and bench.recorder.in_flight == 0)
    assert memory.used_bytes > before
    held.release()
    wait_until(lambda: memory.used_bytes == before)


class Unsent:
    """A transport whose peer takes as much as a test says."""

    left, is_aborted = 100, False

    def get_write_buffer_size(self) -> int:
        return self.left

    def write(self, data: bytes) -> None:
        self.left += len(data)

    def abort(self) -> None:
        self.is_aborted = True


@pytest.mark.parametrize("added", [0, 9])
def test_a_reader_may_take_an_answer_slowly_also_while_others_are_added(
    monkeypatch: pytest.MonkeyPatch, added: int
) -> None:
    transport = Unsent()

    async def run() -> None:
        loop, skipped_s = asyncio.get_running_loop(), 0.0
        now = loop.time
        monkeypatch.setattr(loop, "time", lambda: now() + skipped_s)
        deadline = SendingDeadline(transport, RECEIVE_S)  # type: ignore[arg-type]
        deadline.start()
        for taken, is_aborted in ((1, False), (1, False), (0, True)):
            if added:
                deadline.write(bytes(added))
            transport.left -= taken
            skipped_s += RECEIVE_S
            await asyncio.sleep(0.001)  # timers that are due run
            assert transport.is_aborted == is_aborted

    asyncio.run(run())


def test_who_takes_no_answer_is_ended_in_time(roomy: Make) -> None:
    bench = roomy()
    known(bench, OPEN + 2 * request_frame(HUGE))
    wait_until(lambda: bench.requests("answered") > 0)
    bench.advance_until(lambda: bench.open_calls == 0, RECEIVE_S)


def test_memory_that_may_shrink_is_not_copied(bench: Bench, ending: ExitStack) -> None:
    """The reader is told to send the arrays."""
    fd = os.memfd_create("edl-lent")
    ending.callback(os.close, fd)
    os.ftruncate(fd, 1 << 20)
    os.pwrite(fd, (7).to_bytes(8, "little"), 56)
    key = key_of(os.getpid(), fd)
    opened = OpenFrame(
        "resnet", (FramedTensor("x", "FP32", 2),), memory_key=key, memory_bytes=1 << 20
    )
    connection = connect("127.0.0.1", offered(bench), None, WAIT_S, unix=True)
    ending.callback(connection.close)
    connection.settimeout(WAIT_S)
    connection.sendall(opened.frame() + placed_frame())
    header, _ = answer_of(connection)
    assert (header.kind, header.flags) == (frames.ERROR, frames.SHARED_MEMORY_FAILED)


def test_results_are_described_after_an_answer_that_was_too_large() -> None:
    """The error that the reader gets instead has no description."""
    identity = SimpleNamespace(draining=False)
    listener: Any = SimpleNamespace(servicer=SimpleNamespace(identity=identity))
    session = TransportSession(listener, CallCredentials((), {}, "", client=("127.0.0.1", 7)))
    model = ModelSpec("fake", (), (), "c0ffee", ("fake",))
    spec = RequestSpec(model, (RequestedOutput("y"),), {}, {})

    def result(labels: Array) -> FrameHeader:
        ready = RequestLabels({"y": labels}, 0.5)
        return FrameHeader.unpack(session._result(1, spec, ready))  # noqa: SLF001 - 2 GiB otherwise

    with pytest.raises(WireError, match="does not fit into one message"):
        result(np.broadcast_to(np.float32(0), (1 << 29, 1)))
    assert [result(X).flags for _ in range(2)] == [frames.DESCRIBED, 0]


def test_an_idle_connection_hears_goodbye_before_its_end(make: Make) -> None:
    bench = make(max_calls_per_peer=1)
    first = known(bench, OPEN + request_frame())
    assert answer_of(first)[0].kind == frames.RESULT
    second = known(bench, OPEN + request_frame())
    assert answer_of(second)[0].kind == frames.RESULT
    assert answer_of(first)[0].kind == frames.GOAWAY
    assert is_ended(first)


# --- teachers that lie to a reader's connection

Pair = tuple[TransportConnection, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with closing(TransportConnection(ours, "m", None)) as connection, theirs:
        yield connection, theirs


@pytest.fixture
def asked(pair: Pair) -> Pair:
    """A pair over which request 1 was sent."""
    connection, _ = pair
    assert connection.put(1, LabelRequest({"x": X}), 9.0, {})
    connection.send()
    return pair


def result_frame(number: int = 1, rows: int = 2, described: bool = True) -> bytes:
    labels = np.ones((rows, 3), np.float32)
    about = ResultDescription((FramedTensor("y", "FP32", 2),), {"teacher_id": "t"}).to_bytes()
    pieces = frames.result_frame(
        number, {"y": labels}, about if described else b"", device_s=0.5, draining=True
    )
    return b"".join(pieces)


def bool_labels(labels: Array) -> bytes:
    about = ResultDescription((FramedTensor("y", "BOOL", 1),), {}).to_bytes()
    return b"".join(frames.result_frame(1, {"y": labels}, about, device_s=0.5, draining=False))


def refusal_with(pushback: object) -> bytes:
    """An ERROR frame with metadata as no teacher has them."""
    metadata = [["grpc-retry-pushback-ms", pushback]]
    said = {"status": "RESOURCE_EXHAUSTED", "details": "", "metadata": metadata}
    payload = json.dumps(said).encode()
    return FrameHeader(frames.ERROR, 0, 0, 0, 1, len(payload), 0.0).pack() + payload


def test_answers_are_read_however_they_are_cut(pair: Pair) -> None:
    connection, theirs = pair
    for number in range(1, 4):
        assert connection.put(number, LabelRequest({"x": X}), 9.0, {})
    connection.send()
    data = b"".join([result_frame(2), result_frame(1, 5, described=False), result_frame(3)])
    heard = []
    for at in range(0, len(data), 7):
        theirs.sendall(data[at : at + 7])
        heard += connection.receive()
    assert [one.number for one in heard] == [2, 1, 3]
    answers = [one.outcome for one in heard if isinstance(one.outcome, LabelResponse)]
    assert [len(answer.outputs["y"]) for answer in answers] == [2, 5, 2]
    assert answers[1].parameters == {"teacher_id": "t", "device_seconds": 0.5, "draining": True}
    assert connection.unanswered() == []


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"HTTP/1.1 200 OK" + bytes(50), WireError),
        (result_frame(9), WireError),
        (result_frame(1, described=False), WireError),
        (FrameHeader(frames.RESULT, 0, 0, 1, 1, 1 << 40, 0.0).pack(), WireError),
        (FrameHeader(frames.REQUEST, 0, 0, 1, 1, 0, 0.0).pack(), WireError),
        (result_frame()[: frames.HEADER.size] + bytes(len(result_frame())), WireError),
        (frames.error_frame(0, RequestRefused("no")), ConnectionEnded),
        (FrameHeader(frames.ERROR, 0, 0, 0, 1, 2, 0.0).pack() + b"{}", WireError),
        (FrameHeader(frames.ERROR, 0, 0, 0, 1, 1 << 20, 0.0).pack(), WireError),
        (FrameHeader(frames.GOAWAY, 0, 0, 0, 0, 1, 0.0).pack(), WireError),
        (2 * frames.goaway_frame(), WireError),
        (FrameHeader(frames.RESULT, 0, 0, 1, 9, 1 << 20, 0.0).pack(), WireError),
        (refusal_with(5), WireError),
        (refusal_with(None), WireError),
        (refusal_with([]), WireError),
        (bool_labels(np.array([0, 7], np.uint8)), WireError),
    ],
)
def test_lies_end_a_connection(asked: Pair, data: bytes, error: type[Exception]) -> None:
    connection, theirs = asked
    theirs.sendall(data)
    with pytest.raises(error):
        connection.receive()
    assert connection.unanswered() == [1]


def test_a_result_of_a_request_that_is_not_all_sent_is_a_lie(pair: Pair) -> None:
    connection, theirs = pair
    connection.put(1, LabelRequest({"x": np.zeros((1 << 20, 4), np.float32)}), 9.0, {})
    connection.send()
    assert connection.unsent
    theirs.sendall(result_frame())
    with pytest.raises(WireError, match="which was not sent completely"):
        connection.receive()


def test_what_came_before_the_end_of_a_connection_is_heard(asked: Pair) -> None:
    connection, theirs = asked
    connection.put(2, LabelRequest({"x": X}), 9.0, {})
    connection.send()
    theirs.sendall(result_frame() + result_frame(2)[:-1])
    theirs.close()
    assert [one.number for one in connection.receive()] == [1]
    with pytest.raises(ConnectionError):
        connection.receive()


def test_what_no_frame_carries_goes_another_way(pair: Pair) -> None:
    connection, _ = pair
    refused: list[dict[str, Array]] = [
        {},
        *({"x": x} for x in (np.array([b"a"], object), np.array(3.0), np.array([1 + 2j]))),
        {"x": np.zeros((1,) * 17, np.float32)},
        {f"x{n}": X for n in range(300)},
        {"x": np.broadcast_to(np.float32(0), (1 << 32, 0))},
    ]
    for inputs in refused:
        assert not connection.put(1, LabelRequest(inputs), 9.0, {})
    assert connection.unanswered() == []
    assert not connection.unsent


def test_what_an_open_frame_fixes_holds_for_the_requests_behind_it(bench: Bench) -> None:
    """Also for those that have not begun when the next one comes."""
    opens = [
        OpenFrame("resnet", (FramedTensor("x", "FP32", 2),), (name,)) for name in ("sum", "double")
    ]
    data = b"".join(one.frame() + request_frame(number=n) for n, one in enumerate(opens))
    connection = known(bench, data)
    for _ in opens:
        header, payload = answer_of(connection)
        assert header.kind == frames.RESULT
        said, _ = ResultDescription.take(memoryview(payload))
        assert [output.name for output in said.outputs] == [*opens[header.number].outputs]

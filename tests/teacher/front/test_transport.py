"""Strangers and liars at the port of the transport, and at a reader's connection."""

from __future__ import annotations

import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import numpy as np
import pytest

from edl.errors import RateLimited, RequestRefused, WireError
from edl.proto.arena import Array
from edl.proto.clients import Answer, Request
from edl.proto.clients.oip_grpc import OipGrpcClient
from edl.proto.transport import frames, offer
from edl.proto.transport.connection import Connection, Ended, connect
from edl.proto.transport.frames import Description, Header, Opened, Tensor
from edl.proto.transport.offer import Offer
from edl.teacher.transport import listener
from edl.tests.teacher.bench import WAIT_S, Bench, Make
from edl.tests.teacher.fakes import array
from edl.tests.teacher.front.frames_client import FramesClient
from edl.tests.waiting import wait_until

X = array(30, 4)
OPEN = Opened("resnet", (Tensor("x", "FP32", 2),)).frame()


def request_frame(x: Array = X, number: int = 1, **header: int) -> bytes:
    head = frames.head_of([x.shape])
    fields = {"flags": 0, "nbytes": x.nbytes, **header}
    made = Header(frames.REQUEST, fields["flags"], len(head), len(x), number, fields["nbytes"], 9.0)
    return made.pack() + head + x.tobytes()


@pytest.fixture
def ending() -> Iterator[ExitStack]:
    with ExitStack() as ending:
        yield ending


def offered(bench: Bench) -> Offer:
    with closing(OipGrpcClient(bench.address, "resnet")) as client:
        client.probe(WAIT_S)
        found = client._offered()  # noqa: SLF001 - the only way to an offer that is not used
    assert found is not None
    return found


def stranger(bench: Bench, ending: ExitStack, data: bytes = b"") -> socket.socket:
    """A connection that has sent `data`, and proved nothing."""
    made = socket.create_connection(("127.0.0.1", offered(bench).port), WAIT_S)
    ending.callback(made.close)
    made.sendall(data)
    return made


def known(bench: Bench, ending: ExitStack, data: bytes = b"") -> socket.socket:
    """A connection that is open, and has sent `data`."""
    made = connect("127.0.0.1", offered(bench), None, WAIT_S, unix=False)
    made.settimeout(WAIT_S)
    ending.callback(made.close)
    made.sendall(data)
    return made


def is_ended(connection: socket.socket) -> bool:
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        return True
    return True


def answer_of(connection: socket.socket) -> tuple[Header, bytes]:
    """One frame: its header and its payload."""
    header = Header.unpack(received(connection, frames.HEADER.size))
    received(connection, header.head_bytes)
    return header, received(connection, header.nbytes)


def received(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        assert more, "the connection ended"
        data += more
    return data


# --- strangers


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n\r\n" + bytes(100), offer.MAGIC + bytes(offer.HELLO_BYTES), bytes(100)],
)
def test_who_knows_no_offer_is_sent_away(bench: Bench, ending: ExitStack, data: bytes) -> None:
    assert is_ended(stranger(bench, ending, data))
    bench.infer()


def test_a_wrong_proof_is_sent_away_and_an_offer_is_good_once(
    bench: Bench, ending: ExitStack
) -> None:
    found = offered(bench)
    hello = offer.MAGIC + found.session + secrets.token_bytes(offer.CHALLENGE_BYTES)
    connection = stranger(bench, ending, hello)
    received(connection, offer.REPLY_BYTES)
    connection.sendall(bytes(offer.PROOF_BYTES))
    assert is_ended(connection)
    assert is_ended(stranger(bench, ending, hello))


def test_a_server_that_cannot_prove_the_offer_gets_nothing(ending: ExitStack) -> None:
    server = ending.enter_context(socket.create_server(("127.0.0.1", 0)))
    found = Offer.new(1, server.getsockname()[1], "")
    heard: list[bytes] = []

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            heard.append(received(connection, offer.HELLO_BYTES))
            connection.sendall(bytes(offer.REPLY_BYTES))
            heard.append(connection.recv(1))

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(ConnectionAbortedError, match="another server"):
        connect("127.0.0.1", found, None, WAIT_S, unix=False)
    thread.join(WAIT_S)
    assert heard[1:] == [b""]
    assert found.secret not in heard[0]


def test_who_sends_nothing_is_ended_in_time(make: Make, ending: ExitStack) -> None:
    bench = make(receive_s=0.2)
    for data in (b"", offer.MAGIC):
        assert is_ended(stranger(bench, ending, data))
    assert is_ended(known(bench, ending, OPEN + request_frame()[:-1])), "half of a request"
    idle = known(bench, ending, OPEN)
    time.sleep(0.4)
    idle.sendall(request_frame())
    assert answer_of(idle)[0].kind == frames.RESULT


def test_the_oldest_stranger_makes_room(
    bench: Bench, ending: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_STRANGERS", 3)
    first, *others = [stranger(bench, ending) for _ in range(4)]
    assert is_ended(first)
    for connection in others:
        assert not select.select([connection], [], [], 0.05)[0]


# --- frames of those who are known


def test_requests_of_a_connection_are_answered_by_their_numbers(
    make: Make, ending: ExitStack
) -> None:
    bench = make(slots=8)
    connection = known(bench, ending, OPEN)
    held = bench.hold()
    connection.sendall(request_frame(number=7))
    held.wait()
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
        (request_frame(), "before its session"),
        (OPEN + b"GET / HTTP/1.1" + bytes(40), "no frame"),
        (OPEN + frames.goodbye(), "that no reader sends"),
        (OPEN + request_frame(nbytes=X.nbytes + 1), "announced"),
        (OPEN + request_frame(nbytes=1 << 40), "larger than max"),
        (OPEN + Header(frames.REQUEST, 0, 8, 1, 1, 8, 0.0).pack() + bytes(16), "shorter"),
        (Header(frames.OPEN, 0, 0, 0, 0, 7, 0.0).pack() + b"garbage", "no JSON"),
        (Header(frames.OPEN, 0, 0, 0, 0, 1 << 20, 0.0).pack(), "that no reader sends"),
    ],
)
def test_what_is_no_frame_ends_the_connection(
    bench: Bench, ending: ExitStack, data: bytes, words: str
) -> None:
    connection = known(bench, ending, data)
    header, payload = answer_of(connection)
    assert (header.kind, header.number) == (frames.ERROR, 0)
    assert words in str(frames.error_in(payload))
    assert is_ended(connection)
    wait_until(lambda: bench.open_calls == 0)
    bench.infer()


@pytest.mark.parametrize("flags", [0, frames.IN_MEMORY])
def test_a_request_that_cannot_be_answered_spoils_no_other(
    bench: Bench, ending: ExitStack, flags: int
) -> None:
    connection = known(bench, ending, OPEN)
    if flags:
        head = frames.head_of([X.shape]) + frames.PLACE.pack(64, 7, 56)
        wrong = Header(frames.REQUEST, flags, len(head), len(X), 1, 0, 9.0).pack() + head
    else:
        wrong = request_frame(array(3, 5))
    connection.sendall(wrong + request_frame(number=2))
    answers = {header.number: header.kind for header, _ in (answer_of(connection),) * 1}
    answers |= {header.number: header.kind for header, _ in (answer_of(connection),)}
    assert answers == {1: frames.ERROR, 2: frames.RESULT}


def test_bool_is_0_or_1(make: Make, ending: ExitStack) -> None:
    opened = Opened("resnet", (Tensor("x", "BOOL", 2),)).frame()
    connection = known(make(), ending, opened + request_frame(np.full((3, 4), 2, np.uint8)))
    header, payload = answer_of(connection)
    assert header.kind == frames.ERROR
    assert "other bytes than 0 and 1" in str(frames.error_in(payload))


def test_bytes_of_one_caller_are_limited(make: Make, ending: ExitStack) -> None:
    bench = make(max_message_bytes=1 << 20, request_bytes=1 << 20, slots=8)
    large = np.zeros((40_000, 4), np.float32)  # two of them are more than a MiB
    held = bench.hold()
    connection = known(bench, ending, OPEN + request_frame(large))
    held.wait()
    other = known(bench, ending, OPEN + request_frame(large))
    header, payload = answer_of(other)
    assert header.kind == frames.ERROR
    assert isinstance(frames.error_in(payload), RateLimited)
    held.release()
    assert answer_of(connection)[0].kind == frames.RESULT


def test_memory_of_requests_is_given_back(bench: Bench, ending: ExitStack) -> None:
    memory = bench.labeller.memory
    before = memory.used_bytes
    connection = known(bench, ending, OPEN + request_frame())
    assert answer_of(connection)[0].kind == frames.RESULT
    wait_until(lambda: memory.used_bytes == before)
    half = known(bench, ending, OPEN + request_frame()[:-1])
    wait_until(lambda: memory.used_bytes > before)
    half.close()
    wait_until(lambda: memory.used_bytes == before)


def test_an_idle_connection_hears_goodbye_before_its_end(make: Make, ending: ExitStack) -> None:
    bench = make(max_calls_per_peer=1)
    first = known(bench, ending, OPEN + request_frame())
    assert answer_of(first)[0].kind == frames.RESULT
    second = known(bench, ending, OPEN + request_frame())
    assert answer_of(second)[0].kind == frames.RESULT
    assert answer_of(first)[0].kind == frames.GOODBYE
    assert is_ended(first)


# --- teachers that lie to a reader's connection

Serve = Callable[[socket.socket], None]


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    connection = Connection(ours, "m", None)
    yield connection, theirs
    connection.close()
    theirs.close()


def result_frame(number: int = 1, rows: int = 2, described: bool = True) -> bytes:
    labels = np.ones((rows, 3), np.float32)
    about = Description((Tensor("y", "FP32", 2),), {"teacher_id": "t"}).to_bytes()
    pieces = frames.result(
        number, {"y": labels}, about if described else b"", device_s=0.5, draining=True
    )
    return b"".join(pieces)


def test_answers_are_read_however_they_are_cut(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    for number in range(1, 4):
        assert connection.put(number, Request({"x": X}), 9.0, {})
    connection.send()
    data = b"".join([result_frame(2), result_frame(1, 5, described=False), result_frame(3)])
    heard = []
    for at in range(0, len(data), 7):
        theirs.sendall(data[at : at + 7])
        heard += connection.hear()
    assert [one.number for one in heard] == [2, 1, 3]
    answers = [one.outcome for one in heard if isinstance(one.outcome, Answer)]
    assert [len(answer.outputs["y"]) for answer in answers] == [2, 5, 2]
    assert answers[1].parameters == {"teacher_id": "t", "device_seconds": 0.5, "draining": True}
    assert connection.unanswered() == []


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"HTTP/1.1 200 OK" + bytes(50), WireError),
        (result_frame(9), WireError),
        (result_frame(1, described=False), WireError),
        (Header(frames.RESULT, 0, 0, 1, 1, 1 << 40, 0.0).pack(), WireError),
        (Header(frames.REQUEST, 0, 0, 1, 1, 0, 0.0).pack(), WireError),
        (result_frame()[: frames.HEADER.size] + bytes(len(result_frame())), WireError),
        (frames.error(0, RequestRefused("no")), Ended),
        (Header(frames.ERROR, 0, 0, 0, 1, 2, 0.0).pack() + b"{}", WireError),
    ],
)
def test_lies_end_a_connection(
    pair: tuple[Connection, socket.socket], data: bytes, error: type[Exception]
) -> None:
    connection, theirs = pair
    connection.put(1, Request({"x": X}), 9.0, {})
    connection.send()
    theirs.sendall(data)
    with pytest.raises(error):
        connection.hear()
    assert connection.unanswered() == [1]


def test_a_goodbye_lets_what_is_on_its_way_come(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    connection.put(1, Request({"x": X}), 9.0, {})
    connection.send()
    theirs.sendall(frames.goodbye())
    assert connection.hear() == []
    assert not connection.has_room
    theirs.sendall(result_frame())
    assert [one.number for one in connection.hear()] == [1]


def test_what_no_frame_carries_goes_another_way(pair: tuple[Connection, socket.socket]) -> None:
    connection, _ = pair
    for x in (np.array([b"a"], object), np.array(3.0), np.array([1 + 2j])):
        assert not connection.put(1, Request({"x": x}), 9.0, {})
    assert connection.unanswered() == []


def test_a_large_request_goes_out_in_parts(bench: Bench) -> None:
    with closing(FramesClient(bench.address)) as client:
        x = np.random.default_rng(1).standard_normal((60_000, 4), np.float32)
        for _ in range(3):
            answer = client.infer(Request({"x": x}, ("sum",)))
            assert answer.outputs["sum"].tobytes() == x.sum(axis=1).tobytes()


def test_what_an_open_frame_fixes_holds_for_the_requests_behind_it(
    bench: Bench, ending: ExitStack
) -> None:
    """Also for those that have not begun when the next one comes."""
    opens = [Opened("resnet", (Tensor("x", "FP32", 2),), (name,)) for name in ("sum", "double")]
    data = b"".join(one.frame() + request_frame(number=n) for n, one in enumerate(opens))
    connection = known(bench, ending, data)
    for _ in opens:
        header, payload = answer_of(connection)
        assert header.kind == frames.RESULT
        said, _ = Description.take(memoryview(payload))
        assert [output.name for output in said.outputs] == [*opens[header.number].outputs]

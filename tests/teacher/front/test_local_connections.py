"""The local listener: who may connect, what it refuses, and requests like an earlier one."""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edl.errors import RateLimited, RequestRefused, RetryableError
from edl.proto import inference_pb2 as pb
from edl.proto import stream_answers, tensors
from edl.proto.clients import Request, door_line
from edl.proto.doors import LENGTH, TICKET_BYTES, Invitation
from edl.proto.places import Place
from edl.proto.security import ServerSecurity
from edl.teacher.front.callers import Shown
from edl.teacher.model import TensorSpec
from edl.tests.proto.security.authority import write_secret
from edl.tests.teacher.bench import WAIT_S, Bench, Make
from edl.tests.teacher.fakes import array
from edl.tests.teacher.front.local import LocalClient, RawClient, frame, received
from edl.tests.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets without a file")

X = array(300, 4)
SMALL = Request({"x": X})


@pytest.fixture
def client(bench: Bench) -> Iterator[RawClient]:
    with closing(RawClient(bench)) as client:
        yield client


def is_labelled(client: LocalClient) -> bool:
    return client.infer(SMALL).outputs["double"].tobytes() == (X * 2).tobytes()


def answer(connection: socket.socket) -> tensors.InferResponse:
    return tensors.decode_response(stream_answers.read(received(connection)))


def request_ids(connection: socket.socket, count: int) -> list[str]:
    return [answer(connection).request_id for _ in range(count)]


# --- who may connect


def test_an_offer_survives_its_metadata() -> None:
    offer = Invitation.to("edl-x")
    assert Invitation.among([("a", "b"), *offer.metadata()]) == offer
    assert Invitation.among([("a", b"b")]) is None


def test_a_connection_without_a_valid_ticket_is_closed(bench: Bench, client: RawClient) -> None:
    for ticket in (b"0" * TICKET_BYTES, bytes(TICKET_BYTES), b"\xff" * TICKET_BYTES):
        assert client.is_refused(ticket + frame(bench.request()))
    assert bench.requests("answered") == 0


def test_a_connection_that_does_not_send_its_ticket_is_closed(
    bench: Bench, client: RawClient
) -> None:
    with client.connect(b"0") as connection:
        bench.call("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse)  # it has come
        bench.advance(10.0)
        assert received(connection) == b""


def test_no_more_than_64_connections_may_owe_their_ticket(bench: Bench, client: RawClient) -> None:
    silent = [client.connect(b"") for _ in range(64)]
    assert client.is_refused(b"0")
    for connection in silent:
        connection.close()
    ticket = client.offer.ticket.encode()
    wait_until(lambda: not client.is_refused(ticket + frame(bench.request())))


def test_a_ticket_is_void_once_the_memory_is_unregistered(bench: Bench, client: RawClient) -> None:
    ticket = client.offer.ticket.encode() + frame(bench.request())
    assert not client.is_refused(ticket)
    client.unregister()
    assert client.is_refused(ticket)


def test_a_client_has_no_more_than_64_tickets(bench: Bench, client: RawClient) -> None:
    tickets = [client.offer, *(client.offered_again() for _ in range(70))]
    asked = frame(bench.request())
    refused = [client.is_refused(one.ticket.encode() + asked) for one in tickets]
    assert refused == [True] * 7 + [False] * 64


def test_who_shares_no_memory_gets_no_ticket_and_none_is_kept(make: Make, tmp_path: Path) -> None:
    def kept() -> int:
        gc.collect()
        return sum(isinstance(one, Shown) for one in gc.get_objects())

    before, names = kept(), [f"token-of-{number}" for number in range(20)]
    tokens = write_secret(tmp_path / "tokens", "".join(f"student:{n} {n}\n" for n in names))
    bench = make(security=ServerSecurity(tokens_file=tokens))
    status = bench.method("SystemSharedMemoryStatus")
    metadata = [("authorization", f"Bearer {names[0]}")]
    _, call = status.with_call(b"", timeout=WAIT_S, metadata=metadata)
    assert Invitation.among(call.trailing_metadata() or ()) is None
    for name in names:
        with closing(RawClient(bench, name)) as client:
            client.unregister()
    assert kept() - before <= 1, "the last one's is thrown away with the next"


def test_an_impostor_at_the_socket_gets_no_ticket(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(LocalClient(bench.address)) as client:
        monkeypatch.setattr(door_line, "user_behind", lambda _: os.geteuid() + 1)
        monkeypatch.setattr(Invitation, "ticket", property(lambda _: pytest.fail("it was sent")))
        assert is_labelled(client)  # by gRPC
    wait_until(lambda: bench.open_calls == 0)


# --- requests and answers


@pytest.mark.parametrize("rest", [b"\x01", frame(b"12345")[:-1], b""])
def test_a_half_sent_request_leaves_nothing(bench: Bench, client: RawClient, rest: bytes) -> None:
    connection = client.enter(rest)
    wait_until(lambda: bench.open_calls == 1)
    connection.close()
    wait_until(lambda: bench.open_calls == 0)


def test_a_request_over_the_limit_is_refused_unread(bench: Bench, client: RawClient) -> None:
    with client.enter(frame(bench.request(request_id="a"))) as connection:
        connection.sendall(LENGTH.pack((1 << 20) + 1) + bytes(100))
        assert request_ids(connection, 1) == ["a"]
        with pytest.raises(RequestRefused, match="larger than max"):
            stream_answers.read(received(connection))
        assert received(connection) == b""
    assert bench.refused("too_large") == 1


def test_requests_have_a_budget(make: Make) -> None:
    """What the length announces counts, though little of it has come."""
    bench = make(request_bytes=1 << 20)
    request = frame(bench.request())
    with closing(RawClient(bench)) as client:
        with client.enter(request + LENGTH.pack(1 << 20)) as half:
            answer(half)
            with client.enter(request[:-1]) as other:
                with pytest.raises(RateLimited, match="fill the memory"):
                    stream_answers.read(received(other))
                assert received(other) == b""
        wait_until(lambda: bench.open_calls == 0)
        with client.enter(request) as other:
            answer(other)


def test_requests_in_work_count(make: Make) -> None:
    request = frame(tensors.encode_request(model_name="resnet", inputs={"x": array(1000, 4)}))
    limits = {"max_message_bytes": 20_000, "request_bytes": 2 * len(request) - 20}
    bench = make(slots=4, **limits)
    held = bench.hold()
    with closing(RawClient(bench)) as client, client.enter(request) as first:
        held.wait()
        with (
            client.enter(request) as second,
            pytest.raises(RateLimited, match="fill the memory"),
        ):
            stream_answers.read(received(second))
        held.release()
        answer(first)


def test_a_client_that_reads_no_answers_is_cut_off(bench: Bench, client: RawClient) -> None:
    with client.enter() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with ThreadPoolExecutor(1) as pool:
            request = frame(bench.request(20_000))
            sending = pool.submit(connection.sendall, request * 20)
            wait_until(lambda: bench.requests("answered") >= 2)
            bench.advance_until(lambda: bench.open_calls == 0, 10.0)
            assert isinstance(sending.exception(WAIT_S), OSError)


# --- requests like one that was parsed before


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests that were parsed, and not taken for one like an earlier one."""
    found: list[Any] = []
    decode = tensors.decode_request

    def counted(*arguments: Any, **names: Any) -> tensors.InferRequest:
        found.append(arguments)
        return decode(*arguments, **names)

    monkeypatch.setattr(tensors, "decode_request", counted)
    return found


def encoded(place: Place, **request: Any) -> bytes:
    places = {"x": place}
    return tensors.encode_request(model_name="resnet", inputs={"x": X}, places=places, **request)


def asked(client: RawClient, data: bytes) -> bytes:
    with client.enter(frame(data)) as connection:
        return answer(connection).outputs["double"].tobytes()


def test_of_like_requests_the_place_is_checked_each_time(
    client: RawClient, decoded: list[Any]
) -> None:
    for _ in range(3):
        _, place, record = client.put(X)
        assert asked(client, encoded(place)) == (X * 2).tobytes()
    assert len(decoded) < 3
    client.arena.free(record.offset)
    with pytest.raises(RetryableError, match="not this request's any more"):
        asked(client, encoded(place))
    with pytest.raises(RequestRefused, match="not all within"):
        asked(client, encoded(replace(place, offset=(1 << 20) - 8)))


def test_a_request_like_that_of_another_client_reads_none_of_its_memory(
    make: Make, tmp_path: Any, decoded: list[Any]
) -> None:
    tokens = write_secret(tmp_path / "tokens", "student:a s3cret\nstudent:b an0ther\n")
    bench = make(security=ServerSecurity(tokens_file=tokens))
    with (
        closing(RawClient(bench, "s3cret")) as owner,
        closing(RawClient(bench, "an0ther")) as other,
    ):
        _, place, _ = owner.put(X)
        assert asked(owner, encoded(place)) == (X * 2).tobytes()
        with pytest.raises(RequestRefused, match="no region"):
            asked(other, encoded(place))
    assert len(decoded) == 1


def test_a_changed_model_checks_requests_anew(bench: Bench, client: RawClient) -> None:
    _, place, _ = client.put(X)
    asked(client, encoded(place))
    spec = bench.labeller.backend.spec
    bench.labeller.backend.spec = replace(spec, inputs=(TensorSpec("x", "FP32", (-1, 5)),))
    with pytest.raises(RequestRefused, match=r"expected \[-1, 5\]"):
        asked(client, encoded(place))


def test_no_more_than_64_kinds_of_requests_are_kept(client: RawClient, decoded: list[Any]) -> None:
    kinds = []
    for number in range(70):
        _, place, _ = client.put(X)
        kinds.append(encoded(place, parameters={"odd": number}))
        asked(client, kinds[-1])
    assert len(decoded) == 70
    asked(client, kinds[-1])
    asked(client, kinds[10])
    assert len(decoded) == 70
    asked(client, kinds[0])
    assert len(decoded) == 71

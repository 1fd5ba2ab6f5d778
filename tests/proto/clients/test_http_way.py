"""The way by HTTP to a teacher: when it is taken, and what is asked by gRPC in its place."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from edl.proto.clients import Request
from edl.proto.clients.oip_grpc import OipGrpcClient
from edl.proto.http_offer import HttpOffer, new_mark
from edl.proto.stacked import Stacked
from edl.tests.ground.programs import wait_for
from edl.tests.proto.clients.http_ways import WAIT_S, X, ask
from edl.tests.proto.clients.scripted_http import Asked, ScriptedHttp, labelled
from edl.tests.scripted_teacher import ScriptedTeacher, logits_of


def test_batches_go_by_http_where_it_is_offered(
    teacher: ScriptedTeacher, server: ScriptedHttp, client: OipGrpcClient
) -> None:
    for _ in range(3):
        ask(client)
    assert (server.batches, teacher.requests) == (3, 0)
    assert len(server.connections) == 1
    asked = server.asked[-1]
    assert asked.path == "/v2/models/m/infer"
    request = asked.request()
    assert request.request_id == "7"
    assert request.parameters["teacher_id"] == "t"
    assert 0 < request.parameters["timeout"] <= WAIT_S * 1e6  # type: ignore[operator]


def test_pieces_of_a_batch_arrive_as_one(server: ScriptedHttp, client: OipGrpcClient) -> None:
    stacked = Stacked((X[:1], X[2:], X[1:2]))
    labels = client.infer(Request({"x": stacked}), WAIT_S).outputs["logits"]
    np.testing.assert_array_equal(labels, logits_of(X[[0, 2, 3, 1]]))
    assert server.batches == 1


def test_each_request_on_its_way_has_a_connection(
    server: ScriptedHttp, client: OipGrpcClient
) -> None:
    together = threading.Barrier(3, timeout=WAIT_S)

    def meet(asked: Asked, connection: socket.socket) -> bytes:
        together.wait()
        return labelled(asked)

    server.behave = meet
    with ThreadPoolExecutor(3) as pool:
        for _ in range(2):
            list(pool.map(lambda _: ask(client), range(3)))
    assert len(server.connections) == 3


def test_nobody_is_shown_a_batch_before_the_mark_was_heard(
    server: ScriptedHttp, client: OipGrpcClient
) -> None:
    ask(client)
    assert [one.path for one in server.asked] == ["/v2/health/live", "/v2/models/m/infer"]
    assert not server.asked[0].body


def test_who_was_dialled_at_another_port_is_asked_by_grpc(
    teacher: ScriptedTeacher, server: ScriptedHttp
) -> None:
    server.offered(teacher, grpc_port=1)
    client = OipGrpcClient(teacher.address, "m")
    try:
        client.probe(WAIT_S)
        ask(client)
    finally:
        client.close()
    assert (server.asked, teacher.requests) == ([], 1)


def test_an_address_that_only_grpc_understands_is_asked_by_grpc(
    teacher: ScriptedTeacher, server: ScriptedHttp
) -> None:
    client = OipGrpcClient(f"ipv4:{teacher.address}", "m")
    try:
        client.probe(WAIT_S)
        ask(client)
    finally:
        client.close()
    assert (server.asked, teacher.requests) == ([], 1)


def test_an_offer_that_is_made_no_more_is_taken_no_more(
    teacher: ScriptedTeacher, server: ScriptedHttp, client: OipGrpcClient
) -> None:
    ask(client)
    teacher.offer = None
    client.probe(WAIT_S)
    ask(client)
    assert (server.batches, teacher.requests) == (1, 1)
    wait_for(lambda: server.connections[0].fileno() < 0)  # it was closed


@pytest.mark.parametrize("mark", ["", "0123456789abcdef"])
def test_another_server_at_that_port_gets_no_batch(
    teacher: ScriptedTeacher, server: ScriptedHttp, mark: str
) -> None:
    server.mark = mark
    client = OipGrpcClient(teacher.address, "m")
    try:
        client.probe(WAIT_S)
        ask(client)
    finally:
        client.close()
    assert (server.batches, teacher.requests) == (0, 1)


def test_a_port_at_which_nobody_is_costs_no_batch_anything(teacher: ScriptedTeacher) -> None:
    with socket.socket() as silent:  # it does not listen, and keeps the port from all others
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        teacher.offer = HttpOffer(int(teacher.address.rpartition(":")[2]), port, new_mark())
        client = OipGrpcClient(teacher.address, "m")
        try:
            client.probe(WAIT_S)
            for _ in range(3):
                ask(client)
        finally:
            client.close()
    assert teacher.requests == 3


def test_a_port_that_takes_and_says_nothing_delays_the_probe_alone(
    teacher: ScriptedTeacher,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        teacher.offer = HttpOffer(int(teacher.address.rpartition(":")[2]), port, new_mark())
        client = OipGrpcClient(teacher.address, "m")
        try:
            began = time.monotonic()
            client.probe(WAIT_S)
            assert time.monotonic() - began < WAIT_S / 2
            mute.settimeout(0.0)
            with mute.accept()[0]:
                ask(client)
                client.probe(WAIT_S)
                ask(client)
            with pytest.raises(BlockingIOError):  # nobody has tried again
                mute.accept()
        finally:
            client.close()
    assert teacher.requests == 2

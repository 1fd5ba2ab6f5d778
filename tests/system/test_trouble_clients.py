"""Clients that leave in mid-upload, stop sending, or keep connections for nothing.

Whoever does as it should is served meanwhile, and the teacher is what it was when they are gone.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from edl.proto import inference_pb2 as pb
from edl.proto import tensors
from edl.proto.security import open_channel
from edl.tests.faults import FaultProxy
from edl.tests.ground.programs import wait_for
from edl.tests.hostile import frames
from edl.tests.system.teacher_process import ANSWER_S, Teacher, serving
from edl.tests.system.trouble import (
    STEERED,
    Code,
    again_and_again,
    full,
    labelled_throughout,
    metric,
    nothing_leaks,
    over_http,
    rows,
    serves,
    told,
)

LISTEN = ("--http", "0", "--metrics-listen", "0")
#: What its pool, gRPC and HTTP start for calls at the same time.
MORE_THREADS = 8
INFER = b"/inference.GRPCInferenceService/ModelInfer"
#: Of a request that is cut off.
LARGE = np.ones((1 << 20, 4), np.float32)
CUT_BYTES = LARGE.nbytes // 2
RESET = struct.pack("ii", 1, 0)
#: What most systems let a program have before it asks for more.
USUAL_DESCRIPTORS = ("bash", "-c", 'ulimit -Sn 1024; exec "$@"', "bash")


@pytest.mark.parametrize("times", [8, full(300)])
def test_clients_that_are_cut_off_in_mid_upload(times: int) -> None:
    """Real clients, through a proxy that breaks their connection after half of the request."""
    with serving(*LISTEN, model=STEERED) as teacher:
        serves(teacher)

        def upload(_: int) -> None:
            upload_grpc(teacher)
            upload_http(teacher)

        with labelled_throughout(teacher):
            again_and_again(teacher, times, upload, MORE_THREADS)
        wait_for(lambda: metric(teacher, "edl_teacher_in_flight_requests") == 0)
        assert metric(teacher, 'edl_teacher_refused_total{reason="malformed"}') == 0
        serves(teacher)


def upload_grpc(teacher: Teacher) -> None:
    data = tensors.encode_request(model_name="m", inputs={"x": LARGE})
    with cutting(teacher.address) as address, open_channel(address, None) as channel:
        call = channel.unary_unary(INFER.decode(), None, None).future(data, timeout=ANSWER_S)
        assert call.code() is Code.UNAVAILABLE, "its connection is lost"


def upload_http(teacher: Teacher) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": LARGE.shape}
    message = {"inputs": [{**tensor, "parameters": {"binary_data_size": LARGE.nbytes}}]}
    head = json.dumps(message).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    content = head + LARGE.tobytes()
    with cutting(web_address(teacher)) as address:
        url = f"http://{address}/v2/models/m/infer"
        with pytest.raises(httpx.TransportError):
            httpx.post(url, content=content, headers=headers, timeout=ANSWER_S)


@contextmanager
def cutting(target: str) -> Iterator[str]:
    """The address of a proxy whose connections break when half of a request has passed."""
    passed = itertools.count(0, 1 << 16)

    def look(_: bytes) -> None:
        if next(passed) > CUT_BYTES:
            proxy.redirect("127.0.0.1:9")

    with FaultProxy(target, on_request=look) as proxy:
        yield proxy.address


@pytest.mark.parametrize("times", [50, full(4000)])
def test_requests_that_end_in_the_middle(times: int) -> None:
    """Bytes of HTTP/2 and HTTP/1.1 that are cut off anywhere, by an orderly end or by a reset."""
    message = tensors.encode_request(model_name="m", inputs={"x": rows(count=2000)})
    whole_grpc = frames.call(INFER, message)
    whole_http = post(b'{"inputs": [' + b" " * 40_000 + b"]}")
    with serving(*LISTEN, model=STEERED) as teacher:
        serves(teacher)
        assert b"grpc-status" in frames.answer(teacher.address, whole_grpc)
        with frames.write(web_address(teacher), whole_http) as connection:
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 400 ")
        lanes = ((teacher.address, whole_grpc), (web_address(teacher), whole_http))

        def cut(number: int) -> None:
            for address, whole in lanes:
                connection = frames.write(address, whole[: len(whole) * (number % 50 + 1) // 51])
                if number % 2:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                connection.close()
            if number % 50 == 49:  # they are many, but no flood
                wait_for(lambda: connections(teacher) < 50)

        with labelled_throughout(teacher):
            again_and_again(teacher, times, cut, MORE_THREADS)
        wait_for(lambda: metric(teacher, "edl_teacher_in_flight_requests") == 0)
        serves(teacher)


def test_requests_of_which_no_more_comes_are_ended_in_time() -> None:
    message = tensors.encode_request(model_name="m", inputs={"x": rows(count=1000)})
    with serving(*LISTEN, "--receive-timeout", "0.5", model=STEERED) as teacher:
        serves(teacher)
        with nothing_leaks(teacher, MORE_THREADS), labelled_throughout(teacher):
            half = frames.call(INFER, message)[: -len(message) // 2]
            assert b"grpc-status" in frames.answer(teacher.address, half)
            with frames.write(web_address(teacher), post(bytes(1000))[:-500]) as connection:
                said = frames.rest(connection)
            assert said.startswith(b"HTTP/1.1 503 ")
            assert b"the request did not come within 0.5 s" in said
        serves(teacher)


@pytest.mark.parametrize("stay", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", ["silent", "HTTP/2", "HTTP/1.1"])
def test_a_thousand_idle_connections(kind: str, stay: bool) -> None:
    """They keep nobody out, also not who comes after them; at last the teacher itself ends them."""
    with serving(*LISTEN, model=STEERED, through=USUAL_DESCRIPTORS) as teacher:
        serves(teacher)
        assert over_http(teacher, rows()).is_success
        with nothing_leaks(teacher, MORE_THREADS), ExitStack() as idle:
            with labelled_throughout(teacher):
                for _ in range(1000):
                    connection = idle.enter_context(connect(teacher, kind))
                    if kind == "HTTP/2":
                        connection.sendall(frames.PREFACE + frames.frame(4, 0, 0, b""))
                wait_for(lambda: connections(teacher) >= 1000)
                for _ in range(5):
                    anew(teacher)
            if stay:  # silent ones go after 10 s, those that do not answer a ping after 30 s
                wait_for(lambda: connections(teacher) < 10, timeout_s=60.0)
        serves(teacher)


def connect(teacher: Teacher, kind: str) -> socket.socket:
    address = web_address(teacher) if kind == "HTTP/1.1" else teacher.address
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=ANSWER_S)


def anew(teacher: Teacher) -> None:
    """Somebody comes who has no connection yet, over either protocol."""
    began = time.monotonic()
    with open_channel(teacher.address, None) as channel:
        live: Any = channel.unary_unary(
            "/inference.GRPCInferenceService/ServerLive", None, pb.ServerLiveResponse.FromString
        )
        assert live(b"", timeout=ANSWER_S).live
    answer = over_http(teacher, rows())
    assert answer.json()["outputs"][0]["data"] == (rows() * 2).ravel().tolist()
    assert time.monotonic() - began < 5.0


def connections(teacher: Teacher) -> int:
    """Those that it holds as a server, also where the client has closed its end."""
    with contextlib.suppress(psutil.Error):
        found = psutil.Process(teacher.process.pid).net_connections("tcp")
        return sum(one.status != psutil.CONN_LISTEN for one in found)
    return 0


def web_address(teacher: Teacher) -> str:
    found = re.match(r"http://([^/]+)/", told(teacher, "HTTP"))
    assert found is not None
    return found[1]


def post(body: bytes) -> bytes:
    head = f"POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body

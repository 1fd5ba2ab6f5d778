"""A teacher with bad clients, a crashing predictor or no memory serves on and leaks nothing."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import httpx
import numpy as np
import psutil
import pytest

from edl.proto import inference_pb2 as pb
from edl.proto import tensors
from edl.proto.security import open_channel
from edl.tests.faults import FaultProxy
from edl.tests.proto import raw_http2
from edl.tests.system.teacher_process import ANSWER_S, START_S, Teacher, refusal, serving
from edl.tests.system.trouble import (
    Code,
    attempt,
    full,
    labelled_throughout,
    metric,
    nothing_leaks,
    over_http,
    rows,
    serves,
    told,
)
from edl.tests.teacher.functions import KILL, NAN
from edl.tests.waiting import wait_until

SERVICE = "inference.GRPCInferenceService"
LISTEN = ("--http", "0", "--metrics-listen", "0")
#: Threads that its pool, gRPC and HTTP may start for concurrent calls.
MORE_THREADS = 8
#: A request that is cut off.
LARGE = np.ones((1 << 20, 4), np.float32)
CUT_BYTES = LARGE.nbytes // 2
#: The soft limit of descriptors on most systems.
USUAL_DESCRIPTORS = ("bash", "-c", 'ulimit -Sn 1024; exec "$@"', "bash")


@pytest.mark.parametrize("times", [8, full(100)])
def test_cut_uploads_crashes_and_nan_leak_nothing_and_harm_no_good_client(times: int) -> None:
    with serving(*LISTEN, "--devices", "cpu,cpu", "--batch-max", "32") as teacher:
        serves(teacher)

        def harm(over: str) -> None:
            if over == "grpc":
                upload_grpc(teacher)
                assert attempt(teacher, rows(NAN)) == (Code.INTERNAL, None)
            else:
                upload_http(teacher)
                assert over_http(teacher, rows(NAN)).status_code == 500
            crash(teacher, over)

        def harm_often() -> None:
            for number in range(times // 2):
                harm("http" if number % 2 else "grpc")

        # The other predictor serves on; requests that are merged with a deadly one go with it, and
        # are not blamed.
        with labelled_throughout(teacher, Code.ABORTED) as codes:
            harm_often()  # allocators, pools and caches grow now
            with nothing_leaks(teacher, MORE_THREADS):
                harm_often()
        assert codes[Code.ABORTED] < 4 * times, codes
        wait_until(lambda: metric(teacher, "edl_teacher_in_flight_requests") == 0)
        for sample, count in (
            ('refused_total{reason="malformed"}', 0),
            ("predictor_restarts_total", times),
            ('output_errors_total{output="twice"}', times),
            ('requests_total{outcome="bad_answer"}', times),
        ):
            assert metric(teacher, f"edl_teacher_{sample}") == count, sample
        serves(teacher)


def upload_grpc(teacher: Teacher) -> None:
    data = tensors.encode_request(model_name="m", inputs={"x": LARGE})
    with cutting(teacher.address) as address, open_channel(address, None) as channel:
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer", None, None).future(
            data, timeout=ANSWER_S
        )
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
    """The address of a proxy that breaks a connection after half of the request."""
    passed = itertools.count(0, 1 << 16)

    def look(_: bytes) -> None:
        if next(passed) > CUT_BYTES:
            proxy.redirect("127.0.0.1:9")

    with FaultProxy(target, on_request=look) as proxy:
        yield proxy.address


def crash(teacher: Teacher, over: str) -> None:
    """Kill a predictor by a request, and wait until another one is ready."""
    loaded = loads(teacher)
    if over == "http":
        assert over_http(teacher, rows(KILL)).status_code == 503
    else:  # ABORTED where it was merged with another client's: either may be to blame
        assert refusal(lambda: teacher.ask(KILL)) in (Code.DATA_LOSS, Code.ABORTED)
    wait_until(lambda: loads(teacher) > loaded and teacher.ready, START_S)


def loads(teacher: Teacher) -> int:
    """How often a predictor has become ready."""
    return sum("self-test passed" in line for line in teacher.process.tail(1000))


@pytest.mark.parametrize("stay", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_thousand_idle_connections(stay: bool) -> None:
    """They keep no client out, even a new one; in the end the teacher closes them itself."""
    with serving(*LISTEN, through=USUAL_DESCRIPTORS) as teacher:
        serves(teacher)
        assert over_http(teacher, rows()).is_success
        with nothing_leaks(teacher, MORE_THREADS), ExitStack() as idle:
            with labelled_throughout(teacher):
                for number in range(1000):
                    kind = ("silent", "HTTP/2", "HTTP/1.1")[number % 3]
                    connection = idle.enter_context(connect(teacher, kind))
                    if kind == "HTTP/2":
                        connection.sendall(raw_http2.PREFACE + raw_http2.frame(4, 0, 0, b""))
                wait_until(lambda: connections(teacher) >= 1000)
                for _ in range(5):
                    ask_anew(teacher)
            if stay:  # silent ones go after 10 s, those that do not answer a ping after 30 s
                wait_until(lambda: connections(teacher) < 10)
        serves(teacher)


def connect(teacher: Teacher, kind: str) -> socket.socket:
    address = web_address(teacher) if kind == "HTTP/1.1" else teacher.address
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=ANSWER_S)


def ask_anew(teacher: Teacher) -> None:
    """A client without a connection asks over each protocol."""
    with open_channel(teacher.address, None) as channel:
        live: Any = channel.unary_unary(
            f"/{SERVICE}/ServerLive", None, pb.ServerLiveResponse.FromString
        )
        assert live(b"", timeout=ANSWER_S).live
    answer = over_http(teacher, rows())
    assert answer.json()["outputs"][0]["data"] == (rows() * 2).ravel().tolist()


def connections(teacher: Teacher) -> int:
    """The connections that it holds as a server."""
    with contextlib.suppress(psutil.Error):
        found = psutil.Process(teacher.process.pid).net_connections("tcp")
        return sum(one.status != psutil.CONN_LISTEN for one in found)
    return 0


def web_address(teacher: Teacher) -> str:
    found = re.match(r"http://([^/]+)/", told(teacher, "HTTP"))
    assert found is not None
    return found[1]


#: With files, and so shared memory, of 16 MiB at most.
SMALL_FILES = ("bash", "-c", 'ulimit -f 16384; exec "$@"', "bash")


@pytest.mark.parametrize("times", [40, full(300)])
def test_no_memory_for_a_batch_or_for_its_labels(times: int) -> None:
    """Between the two processes of a teacher: that request is refused, others are answered."""
    model = "edl.tests.teacher.functions:widening"
    with serving(model=model, through=SMALL_FILES) as teacher:
        small = np.arange(12, dtype=np.uint8).reshape(3, 4)
        too_large = {
            "request": np.ones((13, 1 << 20), np.uint8),
            "labels": np.ones((4, 1 << 20), np.uint8),
        }

        def ask_often() -> None:
            for _ in range(times // 2):
                for what, x in too_large.items():
                    refused = pytest.raises(grpc.RpcError, match=f"no shared memory for the {what}")
                    with refused as caught:
                        teacher.infer({"x": x})
                    error: Any = caught.value
                    assert error.code() is Code.ABORTED, "another attempt may succeed"
                wide = teacher.infer({"x": small}).outputs["wide"]
                np.testing.assert_array_equal(wide, small.astype(np.float32))

        ask_often()
        with nothing_leaks(teacher, MORE_THREADS):
            ask_often()

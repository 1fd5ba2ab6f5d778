"""A teacher with bad clients, a crashing predictor or no memory serves on and leaks nothing."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import httpx
import numpy as np
import psutil
import pytest

from edl.proto import inference_pb2 as pb
from edl.proto.arena import Array
from edl.proto.security.client_connections import open_channel
from edl.tests.faults import FaultProxy
from edl.tests.proto import raw_http2
from edl.tests.proto.strategies import encoded_request
from edl.tests.system.teacher_process import Teacher, refusal, rows, serving
from edl.tests.teacher.functions import KILL, NAN
from edl.tests.waiting import DEADLINE_S, wait_until

Code = grpc.StatusCode
SERVICE = "inference.GRPCInferenceService"
LISTEN = ("--http", "0", "--metrics-listen", "0")
#: Threads that its pool, gRPC and HTTP may start for concurrent calls.
MORE_THREADS = 8
#: A request that is cut off.
LARGE = np.ones((1 << 20, 4), np.float32)
CUT_BYTES = LARGE.nbytes // 2
#: The soft limit of descriptors on most systems.
USUAL_DESCRIPTORS = ("bash", "-c", 'ulimit -Sn 1024; exec "$@"', "bash")
#: With files, and so shared memory, of 16 MiB at most.
SMALL_FILES = ("bash", "-c", 'ulimit -f 16384; exec "$@"', "bash")
#: Of freed memory, allocators may keep so much.
LEAK_BYTES = 64 << 20


def full(count: int) -> Any:
    """A parameter for `make nightly`: the number of rounds."""
    return pytest.param(count, marks=[pytest.mark.nightly, pytest.mark.timeout(300 + 10 * count)])


@pytest.mark.parametrize("times", [8, full(100)])
def test_cut_uploads_crashes_and_nan_leak_nothing_and_harm_no_good_client(times: int) -> None:
    with serving(*LISTEN, "--devices", "cpu,cpu", "--batch", "max=32") as teacher:
        serves(teacher)
        assert str(teacher.ask().parameters["numerics_id"]).startswith("merged-")

        def harm_often() -> None:
            for number in range(times // 2):
                if number % 2:
                    upload_http(teacher)
                    assert over_http(teacher, rows(NAN)).status_code == 500
                else:
                    upload_grpc(teacher)
                    assert attempt(teacher, rows(NAN)) == (Code.INTERNAL, None)
                crash(teacher, over="http" if number % 2 else "grpc")

        # The other predictor serves on; requests that are merged with a deadly one go with it, and
        # are not blamed.
        with labelled_throughout(teacher, Code.ABORTED) as codes:
            harm_often()  # allocators, pools and caches grow now
            with nothing_leaks(teacher):
                harm_often()
        assert codes[Code.ABORTED] < 4 * times, codes
        wait_until(lambda: teacher.metric("edl_teacher_in_flight_requests") == 0)
        for sample, count in (
            ('refused_total{reason="malformed"}', 0),
            ("predictor_restarts_total", times),
            ('output_errors_total{output="twice"}', times),
            ('requests_total{outcome="bad_answer"}', times),
        ):
            assert teacher.metric(f"edl_teacher_{sample}") == count, sample
        serves(teacher)


def upload_grpc(teacher: Teacher) -> None:
    data = encoded_request(model_name="m", inputs={"x": LARGE})
    with cutting(teacher.address) as address, open_channel(address, None) as channel:
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer", None, None).future(
            data, timeout=DEADLINE_S
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
            httpx.post(url, content=content, headers=headers, timeout=DEADLINE_S)


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
    wait_until(lambda: loads(teacher) > loaded and teacher.ready, DEADLINE_S)


def loads(teacher: Teacher) -> int:
    """How often a predictor has become ready."""
    return sum("self-test passed" in line for line in teacher.process.tail(1000))


@pytest.mark.parametrize("stay", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_thousand_idle_connections(stay: bool) -> None:
    """They keep no client out, even a new one; in the end the teacher closes them itself."""
    with serving(*LISTEN, through=USUAL_DESCRIPTORS) as teacher:
        serves(teacher)
        assert over_http(teacher, rows()).is_success
        opened: list[socket.socket] = []
        with nothing_leaks(teacher), ExitStack() as idle:
            with labelled_throughout(teacher):
                for number in range(1000):
                    kind = ("silent", "HTTP/2", "HTTP/1.1")[number % 3]
                    address = web_address(teacher) if kind == "HTTP/1.1" else teacher.address
                    host, _, port = address.rpartition(":")
                    connection = socket.create_connection((host, int(port)), timeout=DEADLINE_S)
                    opened.append(idle.enter_context(connection))
                    if kind == "HTTP/2":
                        connection.sendall(raw_http2.PREFACE + raw_http2.frame(4, 0, 0, b""))
                wait_until(lambda: connections(teacher) + sum(map(has_ended, opened)) >= 1000)
                for _ in range(5):
                    ask_anew(teacher)
            if stay:  # silent ones go after 10 s, those that do not answer a ping after 30 s
                wait_until(lambda: connections(teacher) < 10)
        serves(teacher)


def ask_anew(teacher: Teacher) -> None:
    """A client without a connection asks over each protocol."""
    with open_channel(teacher.address, None) as channel:
        live: Any = channel.unary_unary(
            f"/{SERVICE}/ServerLive", None, pb.ServerLiveResponse.FromString
        )
        assert live(b"", timeout=DEADLINE_S).live
    answer = over_http(teacher, rows())
    assert answer.json()["outputs"][0]["data"] == (rows() * 2).ravel().tolist()


def connections(teacher: Teacher) -> int:
    with contextlib.suppress(psutil.Error):
        found = psutil.Process(teacher.process.pid).net_connections("tcp")
        return sum(one.status != psutil.CONN_LISTEN for one in found)
    return 0


def has_ended(connection: socket.socket) -> bool:
    """Whether the other side has closed a connection."""
    state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return state != 1  # ESTABLISHED


def web_address(teacher: Teacher) -> str:
    found = re.match(r"http://([^/]+)/", teacher.told("HTTP"))
    assert found is not None
    return found[1]


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
        with nothing_leaks(teacher):
            ask_often()


def footprint(teacher: Teacher) -> Counter[str]:
    top = psutil.Process(teacher.process.pid)
    processes = [top, *top.children(recursive=True)]
    links = [link for process in processes for link in links_of(process.pid)]
    return Counter(
        processes=len(processes),
        threads=sum(process.num_threads() for process in processes),
        descriptors=len(links),
        shared_memory=sum(link.startswith(("/memfd:", "/dev/shm/")) for link in links),
        bytes=sum(process.memory_info().rss for process in processes),
    )


@contextmanager
def nothing_leaks(teacher: Teacher) -> Iterator[None]:
    """Fail unless a teacher soon holds no more than before."""
    allowed = footprint(teacher) + Counter(threads=MORE_THREADS, bytes=LEAK_BYTES)
    yield
    deadline = time.monotonic() + DEADLINE_S
    while True:
        with contextlib.suppress(psutil.Error, OSError):  # a process ended while it was looked at
            leaked = footprint(teacher) - allowed
            if not leaked:
                return
            assert time.monotonic() < deadline, f"left behind: {leaked}"
        time.sleep(0.02)


@contextmanager
def labelled_throughout(teacher: Teacher, *allowed: Code) -> Iterator[Counter[Code]]:
    """Ask a `STEERED` teacher while the body runs: all labels are right, other statuses `allowed`.

    Yields the counts of statuses.
    """
    codes: Counter[Code] = Counter()
    over, rng = threading.Event(), random.Random(7)

    def work() -> None:
        while not over.is_set():
            x = rows(rng.random(), rng.random(), rng.randrange(1, 9))
            code, labels = attempt(teacher, x)
            codes[code] += 1
            if code is Code.OK:
                np.testing.assert_array_equal(labels, x * 2)
            else:
                assert code in allowed
            over.wait(0.005)

    with ThreadPoolExecutor(1) as pool:
        client = pool.submit(work)
        try:
            yield codes
        finally:
            over.set()
            client.result()
    assert codes[Code.OK] > 0, codes


def attempt(teacher: Teacher, x: Array) -> tuple[Code, Array | None]:
    try:
        return Code.OK, teacher.infer({"x": x}).outputs["twice"]
    except grpc.RpcError as error:
        vendor: Any = error
        return vendor.code(), None


def serves(teacher: Teacher) -> None:
    x = rows(about=random.random())
    np.testing.assert_array_equal(teacher.infer({"x": x}).outputs["twice"], x * 2)


def over_http(teacher: Teacher, x: Array) -> httpx.Response:
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
    url = f"{teacher.told('HTTP')}/models/m/infer"
    return httpx.post(url, json={"inputs": [tensor]}, timeout=DEADLINE_S)


def links_of(pid: int) -> list[str]:
    folder = f"/proc/{pid}/fd"
    links = []
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            links.append(os.readlink(f"{folder}/{name}"))
    return links

"""Clients that leave in mid-upload, stop sending, or keep connections for nothing.

Whoever does as it should is served meanwhile, and the teacher is what it was when they are gone.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import psutil
import pytest

from edl.proto import inference_pb2 as pb
from edl.proto import tensors
from edl.proto.places import Place
from edl.proto.security import open_channel
from edl.proto.status import PUSHBACK
from edl.supervise import Command, start
from edl.tests.faults import FaultProxy
from edl.tests.hostile import frames
from edl.tests.system.teacher_process import ANSWER_S, START_S, Teacher, refusal, serving
from edl.tests.system.trouble import (
    Code,
    again_and_again,
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
from edl.tests.teacher.functions import HOLD, HOLD_VARIABLE, KILL, NAN
from edl.tests.teacher.segments import Object, placed_request, shared
from edl.tests.waiting import wait_until

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
    with serving(*LISTEN) as teacher:
        serves(teacher)

        def upload(_: int) -> None:
            upload_grpc(teacher)
            upload_http(teacher)

        with labelled_throughout(teacher):
            again_and_again(teacher, times, upload, MORE_THREADS)
        wait_until(lambda: metric(teacher, "edl_teacher_in_flight_requests") == 0)
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
    with serving(*LISTEN) as teacher:
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
                wait_until(lambda: connections(teacher) < 50)

        with labelled_throughout(teacher):
            again_and_again(teacher, times, cut, MORE_THREADS)
        wait_until(lambda: metric(teacher, "edl_teacher_in_flight_requests") == 0)
        serves(teacher)


def test_requests_of_which_no_more_comes_are_ended_in_time() -> None:
    message = tensors.encode_request(model_name="m", inputs={"x": rows(count=1000)})
    with serving(*LISTEN, "--receive-timeout", "0.5") as teacher:
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
    with serving(*LISTEN, through=USUAL_DESCRIPTORS) as teacher:
        serves(teacher)
        assert over_http(teacher, rows()).is_success
        with nothing_leaks(teacher, MORE_THREADS), ExitStack() as idle:
            with labelled_throughout(teacher):
                for _ in range(1000):
                    connection = idle.enter_context(connect(teacher, kind))
                    if kind == "HTTP/2":
                        connection.sendall(frames.PREFACE + frames.frame(4, 0, 0, b""))
                wait_until(lambda: connections(teacher) >= 1000)
                for _ in range(5):
                    anew(teacher)
            if stay:  # silent ones go after 10 s, those that do not answer a ping after 30 s
                wait_until(lambda: connections(teacher) < 10)
        serves(teacher)


def connect(teacher: Teacher, kind: str) -> socket.socket:
    address = web_address(teacher) if kind == "HTTP/1.1" else teacher.address
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=ANSWER_S)


def anew(teacher: Teacher) -> None:
    """Somebody comes who has no connection yet, over either protocol."""
    with open_channel(teacher.address, None) as channel:
        live: Any = channel.unary_unary(
            "/inference.GRPCInferenceService/ServerLive", None, pb.ServerLiveResponse.FromString
        )
        assert live(b"", timeout=ANSWER_S).live
    answer = over_http(teacher, rows())
    assert answer.json()["outputs"][0]["data"] == (rows() * 2).ravel().tolist()


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


SERVICE = "inference.GRPCInferenceService"
PAGE = 4096
#: Where a batch lies in a region, and where its labels are wanted: behind their generations.
INPUT, OUTPUT = 64, 16 * PAGE
BATCH = rows(about=0.25, count=64)
#: With a /dev/shm of its own, of 1 MiB, which the test reaches through /proc.
SMALL_SHM = (
    "unshare", "--user", "--map-root-user", "--mount", "bash", "-c",
    'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"', "bash",
)  # fmt: skip
#: Of files, and so of shared memory, which is one: 16 MiB.
SMALL_FILES = ("bash", "-c", 'ulimit -f 16384; exec "$@"', "bash")


@pytest.fixture
def namespaces() -> None:
    """This system lets us have mounts of our own; CI has to."""
    tried = start(Command("mount", (*SMALL_SHM, "true")))
    try:
        if tried.wait(ANSWER_S) != 0 and os.environ.get("CI") != "true":
            pytest.skip(f"no namespaces for us here: {' '.join(tried.tail(1))}")
    finally:
        tried.stop()


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """The file whose coming into being lets held batches go."""
    return tmp_path / "go"


class Region:
    """A client's memory that the teacher knows, with places for a batch and for its labels."""

    def __init__(self, teacher: Teacher, owned: Object) -> None:
        self._channel = open_channel(teacher.address, None)
        self.owned = owned

    def call(self, method: str, request: Any, response: type[Any]) -> Any:
        rpc: Any = self._channel.unary_unary(
            f"/{SERVICE}/{method}", type(request).SerializeToString, response.FromString
        )
        return rpc.future(request, timeout=ANSWER_S)

    def register(self) -> None:
        request = pb.SystemSharedMemoryRegisterRequest(
            name="slots", key=self.owned.key, byte_size=32 * PAGE
        )
        self.call(
            "SystemSharedMemoryRegister", request, pb.SystemSharedMemoryRegisterResponse
        ).result()

    def unregister(self) -> None:
        request = pb.SystemSharedMemoryUnregisterRequest(name="slots")
        self.call(
            "SystemSharedMemoryUnregister", request, pb.SystemSharedMemoryUnregisterResponse
        ).result()

    def use(self, generation: int, x: Any = BATCH) -> None:
        """Give both places to a batch."""
        assert self.owned.take_back(generation, INPUT)
        assert self.owned.take_back(generation, OUTPUT)
        self.owned.put(x.tobytes(), INPUT)

    def ask(self, generation: int | None = None, x: Any = BATCH) -> Any:
        read, written = (Place("slots", at, x.nbytes, generation) for at in (INPUT, OUTPUT))
        request = placed_request("m", x, "twice", read, written)
        return self.call("ModelInfer", request, pb.ModelInferResponse)

    def labels(self, x: Any = BATCH) -> bytes:
        return self.owned.get(x.nbytes, OUTPUT)

    def close(self) -> None:
        self._channel.close()


@contextmanager
def known_memory(teacher: Teacher, folder: Path = Path("/dev/shm")) -> Iterator[Region]:
    """A registered region, which is gone for both sides at the end of the `with`."""
    with shared(32 * PAGE, folder) as owned:
        region = Region(teacher, owned)
        try:
            region.register()
            yield region
            region.unregister()
        finally:
            region.close()


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """No page of the file system is left."""
    filler = folder / "filler"
    free = os.statvfs(folder)
    filler.write_bytes(bytes(free.f_bavail * free.f_bsize))
    with pytest.raises(OSError, match="No space left"):
        (folder / "one more").write_bytes(bytes(1))
    (folder / "one more").unlink()
    try:
        yield
    finally:
        filler.unlink()


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("times", [10, full(1000)])
def test_a_full_dev_shm(times: int) -> None:
    """Labels for which there is no page are refused; who sends its batch does not notice."""
    with serving("--http", "0", through=SMALL_SHM) as teacher:
        folder = Path(f"/proc/{teacher.process.pid}/root/dev/shm")
        serves(teacher)
        with (
            nothing_leaks(teacher, MORE_THREADS),
            labelled_throughout(teacher),
            known_memory(teacher, folder) as region,
        ):
            region.owned.put(BATCH.tobytes(), INPUT)
            with filled(folder):
                for _ in range(times):
                    code, details = end_of(region.ask())
                    assert code is Code.ABORTED
                    assert "cannot be written: No space left on device" in details
                said = over_http_in_memory(teacher)
                assert said.status_code == 503
                assert "No space left on device" in said.json()["error"]
                # To register takes no memory, so that is done even then.
                region.unregister()
                region.register()
            assert region.labels() == bytes(BATCH.nbytes), "nothing was written by halves"
            answer = region.ask().result()
            assert answer.raw_output_contents == [b""]
            assert region.labels() == (BATCH * 2).tobytes()


@pytest.mark.usefixtures("namespaces")
def test_a_predictor_starts_though_dev_shm_is_full() -> None:
    """What joins the two processes of a teacher is memory without a name, in no file system."""
    with serving(through=SMALL_SHM) as teacher:
        folder = Path(f"/proc/{teacher.process.pid}/root/dev/shm")
        serves(teacher)
        with filled(folder), nothing_leaks(teacher, MORE_THREADS):
            assert attempt(teacher, rows(KILL))[0] is Code.ABORTED
            wait_until(lambda: teacher.ready, START_S)
            serves(teacher)


def over_http_in_memory(teacher: Teacher) -> httpx.Response:
    """The same batch of the same region, asked for over HTTP."""
    read, written = (Place("slots", at, BATCH.nbytes).parameters() for at in (INPUT, OUTPUT))
    message = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": BATCH.shape, "parameters": read}],
        "outputs": [{"name": "twice", "parameters": written}],
    }
    return httpx.post(f"{told(teacher, 'HTTP')}/models/m/infer", json=message, timeout=ANSWER_S)


@pytest.mark.parametrize("times", [40, full(300)])
def test_no_memory_for_a_batch_or_for_its_labels(times: int) -> None:
    """Between the two processes of a teacher: that request hears of it, others are answered."""
    model = "edl.tests.teacher.functions:widening"
    with serving(model=model, through=SMALL_FILES) as teacher:
        small = np.arange(12, dtype=np.uint8).reshape(3, 4)
        inputs_too_large = np.ones((13, 1 << 20), np.uint8)
        labels_too_large = np.ones((4, 1 << 20), np.uint8)

        def ask(_: int) -> None:
            assert "no shared memory for the request" in refused(teacher, inputs_too_large)
            assert "no shared memory for the labels" in refused(teacher, labels_too_large)
            widened(teacher, small)

        again_and_again(teacher, times, ask, MORE_THREADS)


def widened(teacher: Teacher, x: Any) -> None:
    np.testing.assert_array_equal(teacher.infer({"x": x}).outputs["wide"], x.astype(np.float32))


def refused(teacher: Teacher, x: Any) -> str:
    """The words in which a batch is sent back, to be tried again."""
    with pytest.raises(grpc.RpcError) as caught:
        teacher.infer({"x": x})
    error: Any = caught.value
    assert error.code() is Code.ABORTED
    return str(error.details())


@pytest.mark.parametrize("times", [2, full(200)])
def test_stopped_and_awake_after_its_slot_was_given_to_another_batch(times: int, go: Path) -> None:
    with ExitStack() as all_of_it:
        teacher = all_of_it.enter_context(serving("--slots", "4", env={HOLD_VARIABLE: str(go)}))
        serves(teacher)
        with nothing_leaks(teacher, MORE_THREADS), known_memory(teacher) as region:
            for number in range(times):
                region.use(10 * number + 1)
                before_reading(teacher, region, 10 * number + 1)
                region.use(10 * number + 4, BATCH)
                while_it_works(teacher, region, 10 * number + 5, go)
                # The very next batch in this slot has its own labels.
                region.use(10 * number + 8)
                region.ask(10 * number + 8).result()
                assert region.labels() == (BATCH * 2).tobytes()
        serves(teacher)


def before_reading(teacher: Teacher, region: Region, generation: int) -> None:
    """It is stopped when the request comes, and finds another batch in its place."""
    teacher.process.send_signal(signal.SIGSTOP)
    late = region.ask(generation)
    region.use(generation + 1, BATCH + 100)
    untouched = region.labels()
    teacher.process.send_signal(signal.SIGCONT)
    is_told(late, generation)
    assert region.labels() == untouched


def while_it_works(teacher: Teacher, region: Region, generation: int, go: Path) -> None:
    """It is stopped while the model has the batch, and wakes with labels for a place of others."""
    held = BATCH.copy()
    held[0, 0] = HOLD
    region.use(generation, held)
    late = region.ask(generation, held)
    wait_until(lambda: any(go.parent.glob("go.[0-9]*")))
    teacher.process.send_signal(signal.SIGSTOP)
    region.use(generation + 1, BATCH + 100)
    region.owned.put(b"labels of another batch", OUTPUT)
    go.touch()
    teacher.process.send_signal(signal.SIGCONT)
    is_told(late, generation)
    assert region.owned.get(23, OUTPUT) == b"labels of another batch"
    for file in go.parent.iterdir():
        os.unlink(file)


def is_told(late: Any, generation: int) -> None:
    code, details = end_of(late)
    assert code is Code.ABORTED
    assert f"its generation is {generation + 1}, {generation} was named" in details


def end_of(call: Any) -> tuple[Code, str]:
    assert refusal(lambda: call.result(ANSWER_S)) is call.code()
    return call.code(), call.details()


@pytest.mark.parametrize("crashes", [4, full(100)])
def test_a_predictor_that_crashes_in_mid_request_costs_that_request(crashes: int) -> None:
    with serving(*LISTEN, "--devices", "cpu,cpu") as teacher:
        serves(teacher)
        crash(teacher, over="grpc")
        # Of two predictors one serves on; what waits at the other goes with it.
        with (
            nothing_leaks(teacher, MORE_THREADS),
            labelled_throughout(teacher, Code.ABORTED) as codes,
        ):
            for number in range(1, crashes):
                crash(teacher, over="http" if number % 2 else "grpc")
        assert codes[Code.ABORTED] < 4 * crashes, codes
        assert metric(teacher, "edl_teacher_predictor_restarts_total") == crashes
        serves(teacher)


def crash(teacher: Teacher, over: str) -> None:
    """Have a predictor die by a request, and wait until another one is there."""
    loaded = loads(teacher)
    if over == "http":
        answer = over_http(teacher, rows(KILL))
        assert answer.status_code == 503, answer.text
        assert "the predictor ended in mid-request" in answer.json()["error"]
    else:
        assert refusal(lambda: teacher.ask(KILL)) is Code.ABORTED
    wait_until(lambda: loads(teacher) > loaded and teacher.ready, START_S)


def loads(teacher: Teacher) -> int:
    """How often a predictor has been made ready."""
    return sum("self-test passed" in line for line in teacher.process.tail(1000))


@pytest.mark.parametrize("times", [100, full(20_000)])
def test_labels_that_are_not_finite_reach_nobody_and_cost_nothing(times: int) -> None:
    with serving(*LISTEN, "--batch-max", "32") as teacher:
        serves(teacher)
        # Requests are merged: the good ones stand in the same run as those that get NaN.
        with nothing_leaks(teacher, MORE_THREADS), labelled_throughout(teacher):
            for _ in range(times):
                assert attempt(teacher, rows(NAN)) == (Code.INTERNAL, None)
            answer = over_http(teacher, rows(NAN))
            assert answer.status_code == 500
            assert "'twice' holds 4 values of 12 that are NaN" in answer.json()["error"]
        assert metric(teacher, 'edl_teacher_output_errors_total{output="twice"}') == times + 1
        assert metric(teacher, 'edl_teacher_requests_total{outcome="bad_answer"}') == times + 1
        serves(teacher)


def held_rows() -> Any:
    """A batch that the model keeps until the test lets it go."""
    return rows(HOLD)


@pytest.fixture
def holding(tmp_path: Path) -> Iterator[Path]:
    """The file that lets held batches go."""
    file = tmp_path / "go"
    yield file
    file.touch()


def in_flight(teacher: Teacher) -> float:
    return metric(teacher, "edl_teacher_in_flight_requests")


def test_a_model_that_takes_its_time(holding: Path) -> None:
    """A caller whose deadline passes is told so in time; one that waits gets its labels."""
    env = {HOLD_VARIABLE: str(holding)}
    with serving(*LISTEN, "--slots", "4", env=env) as teacher, ThreadPoolExecutor(4) as pool:
        serves(teacher)
        with nothing_leaks(teacher, MORE_THREADS + 4):
            patient = pool.submit(attempt, teacher, held_rows())
            wait_until(lambda: in_flight(teacher) == 1)
            behind = pool.submit(attempt, teacher, rows(about=3.0))
            assert attempt(teacher, rows(), 0.5) == (Code.DEADLINE_EXCEEDED, None)
            # Over HTTP a request has no deadline: its caller hangs up.
            with pytest.raises(httpx.ReadTimeout):
                over_http(teacher, rows(), 0.5)
            for _ in range(5):  # the socket side is as awake as ever
                assert teacher.live
                assert teacher.ready
            assert not patient.done()
            assert not behind.done()
            holding.touch()
            for future, x in ((patient, held_rows()), (behind, rows(about=3.0))):
                code, labels = future.result(ANSWER_S)
                assert code is Code.OK
                np.testing.assert_array_equal(labels, x * 2)
        assert metric(teacher, "edl_teacher_expired_total") == 2, "nobody waited for them"
        assert in_flight(teacher) == 0
        serves(teacher)


def test_a_slot_of_a_caller_that_left_is_taken_until_the_model_is_done(holding: Path) -> None:
    env = {HOLD_VARIABLE: str(holding)}
    with serving(*LISTEN, "--slots", "1", env=env) as teacher:
        serves(teacher)
        with nothing_leaks(teacher, MORE_THREADS), open_channel(teacher.address, None) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", None, None)
            data = tensors.encode_request(model_name="m", inputs={"x": held_rows()})
            assert refusal(lambda: call(data, timeout=1.0)) is Code.DEADLINE_EXCEEDED
            # No memory is used twice: the model has that batch still.
            assert attempt(teacher, rows())[0] is Code.RESOURCE_EXHAUSTED
            full_up = over_http(teacher, rows())
            assert full_up.status_code == 429
            assert int(full_up.headers["Retry-After"]) >= 1
            assert teacher.ready
            holding.touch()
            wait_until(lambda: not teacher.busy())
        serves(teacher)


def test_more_requests_than_slots_are_refused_with_a_hint(holding: Path) -> None:
    env = {HOLD_VARIABLE: str(holding)}
    with (
        serving(*LISTEN, "--slots", "8", env=env) as teacher,
        open_channel(teacher.address, None) as channel,
    ):
        serves(teacher)
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", None, None)
        data = tensors.encode_request(model_name="m", inputs={"x": held_rows()})
        with nothing_leaks(teacher, MORE_THREADS + 8):
            calls: list[Any] = [call.future(data, timeout=ANSWER_S) for _ in range(40)]
            wait_until(lambda: sum(one.done() for one in calls) == 32)
            refused = [one for one in calls if one.done()]
            assert {one.code() for one in refused} == {Code.RESOURCE_EXHAUSTED}
            hints = [dict(one.trailing_metadata())[PUSHBACK] for one in refused]
            assert all(0 < int(hint) <= 1000 * ANSWER_S for hint in hints)
            holding.touch()
            for one in set(calls) - set(refused):
                labels = tensors.decode_response(one.result()).outputs["twice"]
                np.testing.assert_array_equal(labels, held_rows() * 2)
        serves(teacher)

"""Shared memory that is full, or was given to another batch while the teacher was stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from edl.proto import inference_pb2 as pb
from edl.proto.places import Place
from edl.proto.security import open_channel
from edl.supervise import Command, start
from edl.tests.ground.programs import wait_for
from edl.tests.system.teacher_process import ANSWER_S, START_S, Teacher, refusal, serving
from edl.tests.system.trouble import (
    STEERED,
    Code,
    again_and_again,
    attempt,
    full,
    labelled_throughout,
    nothing_leaks,
    rows,
    serves,
    told,
)
from edl.tests.teacher.functions import HOLD, HOLD_VARIABLE, KILL
from edl.tests.teacher.segments import Object, placed_request, shared

SERVICE = "inference.GRPCInferenceService"
MORE_THREADS = 8
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
    with serving("--http", "0", model=STEERED, through=SMALL_SHM) as teacher:
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
    with serving(model=STEERED, through=SMALL_SHM) as teacher:
        folder = Path(f"/proc/{teacher.process.pid}/root/dev/shm")
        serves(teacher)
        with filled(folder), nothing_leaks(teacher, MORE_THREADS):
            assert attempt(teacher, rows(KILL))[0] is Code.ABORTED
            wait_for(lambda: teacher.ready, START_S)
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
        teacher = all_of_it.enter_context(
            serving("--slots", "4", model=STEERED, env={HOLD_VARIABLE: str(go)})
        )
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
    wait_for(lambda: any(go.parent.glob("go.[0-9]*")))
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

"""A teacher that is stopped in mid-request and wakes after its place was given to another batch."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from edl.proto import inference_pb2 as pb
from edl.proto.places import Place
from edl.proto.security import open_channel
from edl.supervise import Process, python_command, start
from edl.tests.teacher.bench import SERVICE, WAIT_S
from edl.tests.teacher.fakes import array
from edl.tests.teacher.segments import Object, placed_request, shared

INPUT, OUTPUT = 64, 1024
X = array(3, 4)


@dataclass
class Stopped:
    """A teacher's process, a region of ours that it knows, and the file that lets its model go."""

    process: Process
    channel: Any
    owned: Object
    go: Path

    def call(self, method: str, request: Any, response: Any) -> Any:
        kind: Callable[[Any], bytes] = type(request).SerializeToString
        rpc = self.channel.unary_unary(f"/{SERVICE}/{method}", kind, response.FromString)
        return rpc.future(request, timeout=WAIT_S)

    def infer(self, generation: int) -> Any:
        """A batch in our memory, whose labels are wanted there."""
        read, written = (Place("slots", at, X.nbytes, generation) for at in (INPUT, OUTPUT))
        request = placed_request("resnet", X, "double", read, written)
        return self.call("ModelInfer", request, pb.ModelInferResponse)

    def use(self, generation: int, data: bytes) -> None:
        """Give both places to a batch."""
        for at in (INPUT, OUTPUT):
            assert self.owned.take_back(generation, at)
        self.owned.put(data, INPUT)

    def stop(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def wake(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)


@pytest.fixture
def teacher(tmp_path: Path) -> Iterator[Stopped]:
    go = tmp_path / "go"
    process = start(python_command("teacher", "edl.tests.teacher.held_teacher", str(go)))
    try:
        port = process.expect(r"^port (\d+)$", WAIT_S)[1]
        with shared(4096) as owned, open_channel(f"127.0.0.1:{port}") as channel:
            found = Stopped(process, channel, owned, go)
            region = pb.SystemSharedMemoryRegisterRequest(
                name="slots", key=owned.key, byte_size=4096
            )
            found.call(
                "SystemSharedMemoryRegister", region, pb.SystemSharedMemoryRegisterResponse
            ).result()
            yield found
    finally:
        process.stop(grace_s=0.0)


def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError):
        call.result(WAIT_S)
    return call.code(), call.details()


def is_served(teacher: Stopped, generation: int) -> None:
    teacher.use(generation, X.tobytes())
    teacher.go.touch()
    answer = teacher.infer(generation).result(WAIT_S)
    assert answer.raw_output_contents == [b""]
    assert teacher.owned.get(X.nbytes, OUTPUT) == (X * 2).tobytes()


def test_stopped_before_it_has_read_the_batch_it_labels_no_other(teacher: Stopped) -> None:
    teacher.use(7, X.tobytes())
    teacher.stop()
    late = teacher.infer(7)
    teacher.use(8, (X + 100).tobytes())
    teacher.wake()
    code, details = refusal(late)
    assert code is grpc.StatusCode.ABORTED
    assert "its generation is 8, 7 was named" in details
    assert teacher.owned.get(X.nbytes, OUTPUT) == bytes(X.nbytes)
    is_served(teacher, 9)


def test_stopped_while_the_model_works_it_writes_over_no_other(teacher: Stopped) -> None:
    teacher.use(7, X.tobytes())
    late = teacher.infer(7)
    teacher.process.expect("^held$", WAIT_S)
    teacher.stop()
    teacher.use(8, (X + 100).tobytes())
    teacher.owned.put(b"labels of another batch", OUTPUT)
    teacher.go.touch()
    teacher.wake()
    code, details = refusal(late)
    assert code is grpc.StatusCode.ABORTED
    assert "its generation is 8, 7 was named" in details
    assert teacher.owned.get(23, OUTPUT) == b"labels of another batch"
    is_served(teacher, 9)

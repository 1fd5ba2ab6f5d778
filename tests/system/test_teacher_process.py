"""`edl-teacher serve` as a real process: kills, drains, and whatever can go wrong at a start.

It ends by the right exit code and one clear line, and leaves no process behind (the suite looks for
those after every test).
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

from edl.coordinator.embedded import start_embedded
from edl.coordinator.registry import Member, connect
from edl.proto import inference_pb2 as pb
from edl.proto import tensors
from edl.proto.arena import Array
from edl.supervise import Command, Process, python_command, start
from edl.tests.ground.programs import wait_for, wait_gone
from edl.tests.teacher.networks import (
    HOLD,
    HOLD_VARIABLE,
    KILL,
    NAN,
    export,
    export_without_outputs,
)

STEERED = "edl.tests.teacher.networks:steered"
START_S = 60.0
ANSWER_S = 30.0


class Teacher:
    """A teacher process that is ready, and a client of it."""

    def __init__(self, process: Process, address: str) -> None:
        self.process = process
        self.address = address
        self._channel = grpc.insecure_channel(address)

    def ask(self, order: float = 0.0, timeout_s: float = ANSWER_S) -> tensors.InferResponse:
        x = np.full((3, 4), 0.5, dtype=np.float32)
        x[0, 0] = order
        return self.infer(inputs={"x": x}, timeout_s=timeout_s)

    def infer(self, inputs: dict[str, Array], timeout_s: float = ANSWER_S) -> tensors.InferResponse:
        data = tensors.encode_request(model_name="m", inputs=inputs)
        call = self._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", None, None)
        return tensors.decode_response(call(data, timeout=timeout_s))

    def probe(self, method: str, response: type[Any]) -> Any:
        path = f"/inference.GRPCInferenceService/{method}"
        call = self._channel.unary_unary(path, None, response.FromString)
        return call(b"", timeout=ANSWER_S)

    @property
    def live(self) -> bool:
        return bool(self.probe("ServerLive", pb.ServerLiveResponse).live)

    @property
    def ready(self) -> bool:
        return bool(self.probe("ServerReady", pb.ServerReadyResponse).ready)

    def busy(self) -> bool:
        """Whether every slot is taken; asks for labels to find out."""
        try:
            self.ask()
        except grpc.RpcError as error:
            vendor: Any = error
            return bool(vendor.code() is grpc.StatusCode.RESOURCE_EXHAUSTED)
        return False

    def predictor(self) -> psutil.Process:
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def close(self) -> None:
        self._channel.close()
        self.process.stop()


def command(*arguments: str, **env: str) -> Command:
    return python_command("teacher", "edl.teacher", "serve", *arguments, env=env)


@contextmanager
def serving(*arguments: str, model: str = STEERED, **env: str) -> Iterator[Teacher]:
    process = start(command("--model", model, "--service", "m", *arguments, **env))
    try:
        ready = process.expect(r"^teacher ready: \S+ m on (\S+)$", START_S)
        teacher = Teacher(process, ready[1])
        try:
            yield teacher
        finally:
            teacher.close()
    finally:
        process.stop()


def refusal(call: Callable[[], object]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    code: grpc.StatusCode = error.code()
    return code


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    process, url = start_embedded()
    yield url
    process.stop()


@pytest.fixture
def hold(tmp_path: Path) -> Path:
    """The file whose coming into being lets held batches go."""
    return tmp_path / "go"


def members(url: str) -> list[Member]:
    registry = connect(url)
    try:
        return registry.members("teachers", "m")
    finally:
        registry.close()


def test_it_says_what_it_does_in_order_and_one_line_on_stdout(tmp_path: Path) -> None:
    model = str(export(tmp_path))
    with serving(model=model) as teacher:
        images = np.zeros((2, 1, 8, 8), dtype=np.float32)
        assert len(teacher.infer({"image": images}).outputs) == 2
        said = teacher.process.tail()
    assert said[0] == f"loading {model}"
    assert said[1] == "warming up"
    assert "ms/sample on cpu; no coordinator was named" in said[2]
    assert said[3].startswith("teacher ready: 127.0.0.1:")
    assert len(said) == 4


def test_the_predictor_killed_in_mid_request_costs_that_request_only(hold: Path) -> None:
    with serving(**{HOLD_VARIABLE: str(hold)}) as teacher, ThreadPoolExecutor(1) as pool:
        before = teacher.ask().outputs["logits"].copy()
        held = pool.submit(refusal, lambda: teacher.ask(HOLD))
        predictor = teacher.predictor()
        wait_for(hold.with_suffix(".held").exists)
        predictor.kill()
        assert held.result(ANSWER_S) is grpc.StatusCode.ABORTED
        assert teacher.live
        assert not teacher.ready
        wait_for(lambda: teacher.ready, START_S)
        np.testing.assert_array_equal(teacher.ask().outputs["logits"], before)
        assert teacher.predictor().pid != predictor.pid


def test_a_model_that_crashes_by_a_request_is_started_again_and_one_of_nan_is_counted() -> None:
    with serving() as teacher:
        assert refusal(lambda: teacher.ask(KILL)) is grpc.StatusCode.ABORTED
        wait_for(lambda: teacher.ready, START_S)
        assert refusal(lambda: teacher.ask(NAN)) is grpc.StatusCode.INTERNAL
        teacher.ask()


def test_a_model_that_takes_its_time_keeps_nothing_else_waiting(hold: Path) -> None:
    with serving("--slots", "1", **{HOLD_VARIABLE: str(hold)}) as teacher:
        teacher.ask()  # connected, so that the next one's time is not spent on that
        # Its client loses patience; the batch stays in the model, and so does its slot.
        code = refusal(lambda: teacher.ask(HOLD, timeout_s=2.0))
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        wait_for(hold.with_suffix(".held").exists)
        assert teacher.live
        assert teacher.ready
        assert refusal(teacher.ask) is grpc.StatusCode.RESOURCE_EXHAUSTED
        hold.touch()
        wait_for(lambda: not teacher.busy())
        teacher.ask()


def test_sigterm_drains_leaves_the_registry_and_ends_by_0(redis_url: str, hold: Path) -> None:
    arguments = ("--coordinator", redis_url, "--teacher-id", "t1")
    with (
        serving(*arguments, **{HOLD_VARIABLE: str(hold)}) as teacher,
        ThreadPoolExecutor(1) as pool,
    ):
        (member,) = members(redis_url)
        assert (member.member, member.facts["address"]) == ("t1", teacher.address)
        assert member.facts["state"] == "serving"
        answer = teacher.ask()
        assert answer.parameters["content_id"] == member.facts["content_id"]
        assert answer.parameters["numerics_id"] == member.facts["numerics_id"]
        held = pool.submit(teacher.ask, HOLD)
        wait_for(lambda: members(redis_url)[0].facts["in_flight"] == "1")

        teacher.process.send_signal(signal.SIGTERM)
        wait_for(lambda: members(redis_url)[0].facts["state"] == "draining")
        hold.touch()
        assert held.result(ANSWER_S).parameters["draining"] is True
        assert teacher.process.wait(ANSWER_S) == 0
        assert members(redis_url) == []


def test_ctrl_c_drains_too_and_ends_by_130() -> None:
    with serving() as teacher:
        teacher.process.send_signal(signal.SIGINT)
        assert teacher.process.wait(ANSWER_S) == 130
        assert teacher.process.tail(1) == ["edl-teacher: interrupted"]


@pytest.mark.parametrize(("number", "returncode"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_it_can_be_stopped_while_it_loads(number: signal.Signals, returncode: int) -> None:
    process = start(command("--model", STEERED))
    try:
        process.expect("^loading", START_S)
        process.send_signal(number)
        assert process.wait(ANSWER_S) == returncode
        assert not any("Traceback" in line for line in process.tail())
    finally:
        process.stop()


def test_killed_it_takes_its_predictor_along() -> None:
    with serving() as teacher:
        predictor = teacher.predictor()
        os.kill(teacher.process.pid, signal.SIGKILL)
        assert teacher.process.wait(ANSWER_S) == -signal.SIGKILL
        wait_gone([predictor.pid])


def test_it_ends_in_its_grace_though_the_predictor_hangs() -> None:
    with serving("--grace", "0.5") as teacher, ThreadPoolExecutor(1) as pool:
        teacher.ask()
        predictor = teacher.predictor()
        predictor.suspend()
        asked = pool.submit(teacher.ask)
        teacher.process.send_signal(signal.SIGTERM)
        assert teacher.process.wait(ANSWER_S / 2) == 0
        assert refusal(asked.result) is grpc.StatusCode.UNAVAILABLE
        wait_gone([predictor.pid])


def test_it_serves_on_when_nobody_reads_its_progress() -> None:
    shell = 'exec 2> >(exec true); sleep 0.5; exec "$@"'
    inner = command("--model", STEERED, "--service", "m")
    process = start(replace(inner, argv=("bash", "-c", shell, "bash", *inner.argv)))
    try:
        process.expect("^teacher ready", START_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(ANSWER_S) == 0
    finally:
        process.stop()


def test_garbage_on_the_port_disturbs_nobody() -> None:
    with serving() as teacher:
        host, _, port = teacher.address.rpartition(":")
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 4096, os.urandom(4096)):
            with socket.create_connection((host, int(port)), timeout=10) as connection:
                connection.sendall(garbage)
                with suppress(ConnectionError):
                    while connection.recv(4096):  # until the server hangs up
                        pass
        teacher.ask()
        assert not any("Traceback" in line for line in teacher.process.tail())


def fails(*arguments: str) -> tuple[int, str]:
    """Exit code and last line of a teacher that cannot start; the lines before are its progress."""
    process = start(command(*arguments))
    try:
        code = process.wait(START_S)
    finally:
        process.stop()
    assert code is not None
    *progress, last = process.tail()
    assert all(line.startswith(("loading ", "warming up")) for line in progress), progress
    return code, last


def test_a_model_that_is_not_there() -> None:
    code, line = fails("--model", "/nope")
    assert code == 2
    assert line.startswith("edl-teacher: no model at /nope: expected")


def test_a_model_without_outputs(tmp_path: Path) -> None:
    model = export_without_outputs(tmp_path)
    code, line = fails("--model", str(model))
    assert code == 2
    assert line.startswith(f"edl-teacher: {model} has 1 inputs and 0 outputs")


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, line = fails("--model", STEERED, "--port", port)
    assert code == 69
    assert line.startswith(f"edl-teacher: 127.0.0.1:{port} is in use by another process")


def test_a_redis_that_does_not_answer() -> None:
    with socket.socket() as reserved:  # bound and not listening: nobody else gets the port
        reserved.bind(("127.0.0.1", 0))
        url = f"redis://:secret@127.0.0.1:{reserved.getsockname()[1]}"
        code, line = fails("--model", STEERED, "--coordinator", url)
    assert code == 69
    assert "does not answer" in line
    assert "secret" not in line


def test_a_name_that_another_teacher_has_taken_meanwhile(redis_url: str) -> None:
    arguments = ("--coordinator", redis_url, "--teacher-id", "t1")
    with serving(*arguments) as older, serving(*arguments) as newer:
        assert older.process.wait(ANSWER_S) == 1
        assert older.process.tail(1)[0].startswith("edl-teacher: ")
        newer.ask()
        assert [member.facts["address"] for member in members(redis_url)] == [newer.address]

"""`edl-teacher serve` as a real process: kills, drains, and whatever can go wrong at a start.

It ends by the right exit code and one clear line, and leaves no process behind (the suite looks).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest

from edl.coordinator.embedded import start_embedded
from edl.supervise import start
from edl.teacher.config import PredictorConfig
from edl.teacher.drain import QUIET_S
from edl.teacher.fingerprint import take_canary
from edl.teacher.loading import load
from edl.tests.ground.programs import wait_for, wait_gone
from edl.tests.system.teacher_process import (
    ANSWER_S,
    NETWORK,
    START_S,
    STEERED,
    command,
    members,
    refusal,
    serving,
)
from edl.tests.teacher.networks import (
    HOLD,
    HOLD_VARIABLE,
    KILL,
    NAN,
    export,
    export_without_outputs,
)

LINEAR = "edl.tests.teacher.linear"


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    process, url = start_embedded()
    yield url
    process.stop()


@pytest.fixture
def hold(tmp_path: Path) -> Path:
    """The file whose coming into being lets held batches go."""
    return tmp_path / "go"


def test_it_says_what_it_does_in_order_and_one_line_on_stdout(tmp_path: Path) -> None:
    model = str(export(tmp_path))
    with serving(model=model) as teacher:
        images = np.zeros((2, 1, 8, 8), dtype=np.float32)
        assert len(teacher.infer({"image": images}).outputs) == 2
        said = teacher.process.tail()
    assert said[0] == f"loading {model}"
    assert said[1] == "warming up"
    assert said[2] == "self-test passed: finite, neither constant nor uniform"
    assert "ms/sample on cpu; no coordinator was named" in said[3]
    assert said[4].startswith("HTTP on http://127.0.0.1:")
    assert said[5].startswith("teacher ready: 127.0.0.1:")
    assert len(said) == 6


def test_with_verbose_each_call_leaves_a_line_of_json() -> None:
    with serving("--verbose") as teacher:
        teacher.ask(request_id="17")
        said = teacher.process.expect(r"DEBUG edl\.teacher\.access_log: (\{.*\})$", ANSWER_S)[1]
        line = json.loads(said)
        assert (line["method"], line["request_id"], line["samples"]) == ("ModelInfer", "17", 3)


def test_the_predictor_killed_in_mid_request_costs_that_request_only(hold: Path) -> None:
    with (
        serving(model=NETWORK, env={HOLD_VARIABLE: str(hold)}) as teacher,
        ThreadPoolExecutor(1) as pool,
    ):
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
    with serving(model=NETWORK) as teacher:
        assert refusal(lambda: teacher.ask(KILL)) is grpc.StatusCode.ABORTED
        wait_for(lambda: teacher.ready, START_S)
        assert refusal(lambda: teacher.ask(NAN)) is grpc.StatusCode.INTERNAL
        teacher.ask()


def test_labels_that_are_not_finite_are_refused_and_counted_by_output() -> None:
    with serving("--metrics-listen", "0", model=NETWORK) as teacher:
        (said,) = [line for line in teacher.process.tail() if line.startswith("metrics on ")]
        for _ in range(2):
            assert refusal(lambda: teacher.ask(NAN)) is grpc.StatusCode.INTERNAL
        with urllib.request.urlopen(said.removeprefix("metrics on "), timeout=ANSWER_S) as page:
            told = page.read().decode()
        assert 'edl_teacher_output_errors_total{output="logits"} 2.0' in told
        assert 'edl_teacher_output_errors_total{output="twice"} 0.0' in told
        teacher.ask()


def test_a_model_that_takes_its_time_keeps_nothing_else_waiting(hold: Path) -> None:
    variables = {HOLD_VARIABLE: str(hold)}
    with serving("--slots", "1", model=NETWORK, env=variables) as teacher:
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
        serving(*arguments, env={HOLD_VARIABLE: str(hold)}) as teacher,
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


def test_sigterm_under_load_breaks_no_request() -> None:
    with serving() as teacher, ThreadPoolExecutor(2) as pool:
        answered = [0, 0]

        def ask_until_it_leaves(number: int) -> None:
            draining, asked_s = False, time.monotonic()
            while not draining:
                due_s, asked_s = asked_s + QUIET_S, time.monotonic()
                try:
                    draining = bool(teacher.ask().parameters["draining"])
                except grpc.RpcError as error:
                    code = error.code()
                    if code is not grpc.StatusCode.UNAVAILABLE or time.monotonic() < due_s:
                        raise
                    return  # this client stood still for so long that it could not be told
                answered[number] += 1

        clients = [pool.submit(ask_until_it_leaves, number) for number in range(2)]
        for _ in range(50):
            teacher.ask()
        wait_for(lambda: min(answered) > 10 or any(client.done() for client in clients))
        teacher.process.send_signal(signal.SIGTERM)
        for client in clients:
            client.result(ANSWER_S)
        assert min(answered) > 10
        assert teacher.process.wait(ANSWER_S) == 0


def test_ctrl_c_drains_too_and_ends_by_130() -> None:
    with serving() as teacher:
        teacher.process.send_signal(signal.SIGINT)
        assert teacher.process.wait(ANSWER_S) == 130
        assert teacher.process.tail(1) == ["edl-teacher: interrupted"]


@pytest.mark.parametrize(("number", "returncode"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_it_can_be_stopped_while_it_loads(number: signal.Signals, returncode: int) -> None:
    process = start(command("--model", NETWORK))
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


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("not_loaded", "output 'logits' is constant: the same for 16 samples that differ"),
        ("undecided", "output 'logits' is uniform: the same for all 5 classes, in every sample"),
        ("overflowing", "output 'logits' holds 20 values of 20 that are NaN or infinite"),
    ],
)
def test_a_model_that_fails_its_self_test_says_why_and_never_registers(
    redis_url: str, model: str, words: str
) -> None:
    code, line = fails("--model", f"{LINEAR}:{model}", "--coordinator", redis_url)
    assert code == 2
    assert line.startswith(f"edl-teacher: the self-test failed: {words}")
    assert members(redis_url, model) == []


def test_a_model_that_does_not_agree_with_its_canary_does_not_serve(tmp_path: Path) -> None:
    file = tmp_path / "canary"
    loaded = load(PredictorConfig(f"{LINEAR}:good"), lambda text: None)
    canary = take_canary(loaded, None, 1e-3, lambda text: None)
    canary.save(file)
    with serving("--canary", str(file), model=f"{LINEAR}:good") as teacher:
        assert "agrees with its canary within 0.001" in teacher.process.tail()[2]
    replace(canary, outputs={"logits": canary.outputs["logits"] * 1.1}).save(file)
    code, line = fails("--model", f"{LINEAR}:good", "--canary", str(file))
    assert code == 2
    assert "output 'logits' differs from the canary by 0.091 of its greatest value" in line
    replace(canary, content_id="0" * 64).save(file)
    code, line = fails("--model", f"{LINEAR}:good", "--canary", str(file))
    assert code == 2
    assert line.startswith("edl-teacher: the canary is of content 000000000000, the model is ")


def test_without_a_self_test_it_serves_and_warns() -> None:
    with serving("--no-self-test", model=f"{LINEAR}:undecided") as teacher:
        assert teacher.process.tail()[0].startswith("warning: no self-test")
        x = np.ones((2, 4), np.float32)
        np.testing.assert_array_equal(teacher.infer({"x": x}).outputs["logits"], np.full((2, 5), 4))


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, line = fails("--model", STEERED, "--port", port)
    assert code == 69
    assert line.startswith(f"edl-teacher: another process listens on 127.0.0.1:{port}")


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

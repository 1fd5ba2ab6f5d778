"""`edl-teacher serve` as a real process: kills, drains, and whatever can go wrong at a start.

It ends by the right exit code and one clear line, and leaves no process behind (the suite looks).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import grpc
import httpx
import numpy as np
import psutil
import pytest

from edl.coordinator.registry import connect
from edl.proto.security import ClientSecurity, TlsFiles
from edl.supervise import python_command, start
from edl.teacher.config import PredictorConfig
from edl.teacher.drain import QUIET_S
from edl.teacher.fingerprint import take_canary
from edl.teacher.loading import load
from edl.tests.ground.programs import wait_gone
from edl.tests.proto.security.authority import Authority, write_secret
from edl.tests.system.teacher_process import (
    ANSWER_S,
    NETWORK,
    START_S,
    STEERED,
    Teacher,
    command,
    members,
    refusal,
    serving,
    unique,
)
from edl.tests.system.trouble import told
from edl.tests.teacher.functions import HOLD, HOLD_VARIABLE
from edl.tests.teacher.networks import export, export_without_outputs
from edl.tests.waiting import wait_until

LINEAR = "edl.tests.teacher.linear"


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
    env = {HOLD_VARIABLE: str(hold)}
    with serving(env=env) as teacher, ThreadPoolExecutor(1) as pool:
        before = teacher.ask().outputs["twice"].copy()
        held = pool.submit(refusal, lambda: teacher.ask(HOLD))
        predictor = teacher.predictor()
        wait_until(hold.with_suffix(f".{predictor.pid}").exists)
        predictor.kill()
        assert held.result(ANSWER_S) is grpc.StatusCode.ABORTED
        assert teacher.live
        wait_until(lambda: teacher.ready, START_S)
        np.testing.assert_array_equal(teacher.ask().outputs["twice"], before)
        assert teacher.predictor().pid != predictor.pid


def test_sigterm_drains_leaves_the_registry_and_ends_by_0(valkey_url: str, hold: Path) -> None:
    name = unique("drains")
    arguments = ("--coordinator", valkey_url, "--teacher-id", "t1")
    with (
        serving(*arguments, service=name, env={HOLD_VARIABLE: str(hold)}) as teacher,
        ThreadPoolExecutor(1) as pool,
    ):
        (member,) = members(valkey_url, name)
        assert (member.member, member.facts["address"]) == ("t1", teacher.address)
        assert member.facts["state"] == "serving"
        answer = teacher.ask()
        assert answer.parameters["content_id"] == member.facts["content_id"]
        assert answer.parameters["numerics_id"] == member.facts["numerics_id"]
        held = pool.submit(teacher.ask, HOLD)
        wait_until(lambda: members(valkey_url, name)[0].facts["in_flight"] == "1")

        teacher.process.send_signal(signal.SIGTERM)
        wait_until(lambda: members(valkey_url, name)[0].facts["state"] == "draining")
        hold.touch()
        assert held.result(ANSWER_S).parameters["draining"] is True
        assert teacher.process.wait(ANSWER_S) == 0
        assert members(valkey_url, name) == []


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
        wait_until(lambda: min(answered) > 10 or any(client.done() for client in clients))
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
        assert teacher.process.wait(ANSWER_S) == 0
        assert refusal(asked.result) is grpc.StatusCode.UNAVAILABLE
        wait_gone([predictor.pid])


def test_it_serves_on_when_nobody_reads_its_progress() -> None:
    shell = 'exec 2> >(exec true); exec "$@"'
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


def test_a_model_that_cannot_be_served(tmp_path: Path) -> None:
    model = export_without_outputs(tmp_path)
    for path, words in (
        ("/nope", "no model at /nope: expected"),
        (model, f"{model} has 1 inputs and 0 outputs"),
    ):
        code, line = fails("--model", str(path))
        assert code == 2
        assert line.startswith(f"edl-teacher: {words}")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("not_loaded", "output 'logits' is constant: the same for 16 samples that differ"),
        ("undecided", "output 'logits' is uniform: the same for all 5 classes, in every sample"),
        ("overflowing", "output 'logits' holds 20 values of 20 that are NaN or infinite"),
    ],
)
def test_a_model_that_fails_its_self_test_says_why_and_never_registers(
    valkey_url: str, model: str, words: str
) -> None:
    name = unique(model)
    arguments = ("--coordinator", valkey_url, "--service", name)
    code, line = fails("--model", f"{LINEAR}:{model}", *arguments)
    assert code == 2
    assert line.startswith(f"edl-teacher: the self-test failed: {words}")
    assert members(valkey_url, name) == []


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


def test_a_name_that_another_teacher_has_taken_meanwhile(valkey_url: str) -> None:
    arguments, name = ("--coordinator", valkey_url, "--teacher-id", "t1"), unique("taken")
    with serving(*arguments, service=name) as older, serving(*arguments, service=name) as newer:
        assert older.process.wait(ANSWER_S) == 1
        assert older.process.tail(1)[0].startswith("edl-teacher: ")
        newer.ask()
        addresses = [member.facts["address"] for member in members(valkey_url, name)]
        assert addresses == [newer.address]


TOKENS = "student s3cret\nviewer l00k\n"


class Trusted:
    """A teacher that asks for TLS and tokens, and what its clients hold."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder / "ca")
        self.files = self.authority.issue("server")
        self.tokens = write_secret(folder / "tokens", TOKENS)
        self.teacher: Teacher

    def client(self, token: str = "s3cret", ca: Path | None = None) -> ClientSecurity:
        file = write_secret(self.folder / f"token-{token}", token) if token else None
        return ClientSecurity(TlsFiles(ca=ca or self.authority.ca), file)

    def refused(self, client: ClientSecurity | None) -> grpc.StatusCode:
        other = Teacher(self.teacher.process, self.teacher.address, client)
        try:
            return refusal(lambda: other.ask(timeout_s=ANSWER_S))
        finally:
            other.disconnect()

    @property
    def page(self) -> str:
        return told(self.teacher, "metrics")

    def metrics(self, token: str = "l00k") -> dict[str, float]:
        headers = {"Authorization": f"Bearer {token}"}
        answer = httpx.get(self.page, headers=headers, timeout=ANSWER_S).raise_for_status()
        pairs = (line.rsplit(" ", 1) for line in answer.text.splitlines() if line[0] != "#")
        return {name: float(value) for name, value in pairs}


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trusted]:
    trusted = Trusted(tmp_path_factory.mktemp("trusted"))
    arguments = ("--tls-cert", str(trusted.files.certificate), "--tls-key", str(trusted.files.key))
    more = ("--tokens", str(trusted.tokens), "--metrics-listen", "0")
    with serving(*arguments, *more, client=trusted.client()) as teacher:
        trusted.teacher = teacher
        yield trusted


def test_who_has_the_ca_and_a_token_is_served_and_others_are_counted(trusted: Trusted) -> None:
    """Which role may do what is in tests/hostile; here the options of the command line count."""
    trusted.teacher.ask()
    name = 'edl_teacher_refused_total{reason="unauthenticated"}'
    before = trusted.metrics()[name]
    assert trusted.refused(trusted.client("wr0ng")) is grpc.StatusCode.UNAUTHENTICATED
    metrics = trusted.metrics()
    assert metrics[name] == before + 1
    assert metrics['edl_teacher_requests_total{outcome="answered"}'] >= 1
    assert metrics["edl_teacher_model_loaded"] == 1
    assert metrics["edl_teacher_sample_device_seconds"] > 0
    assert "edl_teacher_heartbeat_answering" not in metrics, "it serves alone"
    assert not any("wr0ng" in line or "s3cret" in line for line in trusted.teacher.process.tail())


def test_its_metrics_are_for_viewers_and_its_health_for_everybody(trusted: Trusted) -> None:
    for token in ("wr0ng", "s3cret"):
        with pytest.raises(httpx.HTTPStatusError, match=r"40[13]"):
            trusted.metrics(token=token)
    for health in ("live", "ready"):
        page = trusted.page.replace("/metrics", f"/health/{health}")
        answer = httpx.get(page, timeout=ANSWER_S)
        assert (answer.status_code, answer.content) == (200, b"")


def test_who_trusts_another_ca_or_speaks_no_tls_does_not_get_through(
    trusted: Trusted, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path / "stranger")
    assert trusted.refused(trusted.client(ca=stranger.ca)) is grpc.StatusCode.UNAVAILABLE
    assert trusted.refused(None) is grpc.StatusCode.UNAVAILABLE
    trusted.teacher.ask()


def test_another_teacher_on_a_dead_ones_address_answers_nothing_that_was_meant_for_it(
    valkey_url: str,
) -> None:
    name = unique("dead")
    arguments = ("--coordinator", valkey_url, "--ttl", "60")
    with serving(*arguments, "--teacher-id", "dead", service=name) as dead:
        (before,) = members(valkey_url, name)
        os.kill(dead.process.pid, signal.SIGKILL)
        assert dead.process.wait(ANSWER_S) == -signal.SIGKILL
        port = dead.address.rpartition(":")[2]
        with serving(
            *arguments, "--port", port, "--teacher-id", "impostor", service=name
        ) as impostor:
            assert impostor.address == dead.address == before.facts["address"]
            meant = {"teacher_id": "dead", "incarnation": before.facts["incarnation"]}
            for key, value in meant.items():
                code = refusal(lambda k=key, v=value: impostor.ask(parameters={k: v}))  # type: ignore[misc]
                assert code is grpc.StatusCode.FAILED_PRECONDITION
            impostor.ask()
            (own,) = [m for m in members(valkey_url, name) if m.member == "impostor"]
            assert own.facts["instance_key"] != before.facts["instance_key"]


def test_an_administrator_sends_it_away_and_nothing_is_lost(
    valkey_url: str, tmp_path: Path
) -> None:
    hold, name = tmp_path / "go", unique("drained")
    arguments = ("--coordinator", valkey_url, "--teacher-id", "t1")
    registry = connect(valkey_url)
    with (
        serving(*arguments, service=name, env={HOLD_VARIABLE: str(hold)}) as teacher,
        ThreadPoolExecutor(1) as pool,
    ):
        held = pool.submit(teacher.ask, HOLD)
        wait_until(lambda: any(tmp_path.glob("go.*")))  # it is in the model
        assert registry.request_drain(name, "t1")
        wait_until(lambda: "draining: asked by an administrator" in teacher.process.tail())
        hold.touch()
        assert held.result(ANSWER_S).parameters["draining"] is True
        assert teacher.process.wait(ANSWER_S) == 0
        assert not [member for member in members(valkey_url, name) if member.member == "t1"]
    registry.close()


def test_hundreds_of_calls_that_send_nothing_keep_nobody_waiting() -> None:
    with serving("--max-calls", "64", "--max-calls-per-peer", "64") as teacher:
        teacher.ask()
        attacker = start(
            python_command("attacker", "edl.tests.teacher.half_open", teacher.address, "200")
        )
        try:
            attacker.expect("^open$", START_S)
            for _ in range(20):
                teacher.ask()
                assert teacher.live
        finally:
            attacker.stop()
        assert not any("Traceback" in line for line in teacher.process.tail())


def test_beyond_loopback_without_credentials_it_does_not_start() -> None:
    code, line = fails("--model", STEERED, "--host", "0.0.0.0")
    assert code == 2
    assert "--insecure" in line


def test_credentials_that_cannot_be_used_are_named_before_the_model_is_loaded(
    tmp_path: Path,
) -> None:
    for arguments in (
        ("--tokens", str(tmp_path / "none")),
        ("--tls-cert", str(tmp_path / "none"), "--tls-key", str(tmp_path / "none")),
    ):
        code, line = fails("--model", STEERED, *arguments)
        assert code == 2
        assert str(tmp_path / "none") in line


def test_it_registers_its_lanes_and_serves_while_one_predictor_restarts(valkey_url: str) -> None:
    name = unique("lanes")
    arguments = ("--devices", "cpu,cpu", "--batch-max", "16", "--coordinator", valkey_url)
    with serving(*arguments, service=name) as teacher, ThreadPoolExecutor(4) as threads:
        facts = members(valkey_url, name)[0].facts
        assert (facts["lanes"], facts["slots"], facts["device"]) == ("2", "8", "cpu,cpu")
        assert float(facts["t_t_seconds"]) > 0
        first, second = psutil.Process(teacher.process.pid).children()
        list(threads.map(lambda _: teacher.ask(), range(20)))
        first.kill()
        teacher.process.expect("SIGKILL; it is started again", START_S)
        for _ in range(20):
            answer = teacher.ask(7.0)
            np.testing.assert_array_equal(answer.outputs["twice"][0], [14, 1, 1, 1])
            assert teacher.ready
        wait_until(lambda: len(psutil.Process(teacher.process.pid).children()) == 2)
        assert second.is_running()

"""Whom a teacher process believes, who believes it, and who may send it away: real processes."""

from __future__ import annotations

import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from edl.coordinator.embedded import start_embedded
from edl.coordinator.registry import connect
from edl.proto.security import ClientSecurity, TlsFiles
from edl.supervise import python_command, start
from edl.tests.ground.programs import wait_for
from edl.tests.proto.security.authority import Authority, write_secret
from edl.tests.system.teacher_process import (
    ANSWER_S,
    START_S,
    STEERED,
    Teacher,
    command,
    members,
    refusal,
    serving,
)
from edl.tests.teacher.functions import HOLD, HOLD_VARIABLE

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
        (said,) = [line for line in self.teacher.process.tail() if line.startswith("metrics on ")]
        return said.removeprefix("metrics on ")

    def metrics(self, token: str = "l00k") -> dict[str, float]:
        request = urllib.request.Request(self.page, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trusted]:
    trusted = Trusted(tmp_path_factory.mktemp("trusted"))
    arguments = ("--tls-cert", str(trusted.files.certificate), "--tls-key", str(trusted.files.key))
    more = ("--tokens", str(trusted.tokens), "--metrics-listen", "0")
    with serving(*arguments, *more, client=trusted.client()) as teacher:
        trusted.teacher = teacher
        yield trusted


def test_who_has_the_ca_and_a_token_is_served(trusted: Trusted) -> None:
    trusted.teacher.ask()
    metrics = trusted.metrics()
    assert metrics['edl_teacher_requests_total{outcome="answered"}'] >= 1
    assert metrics["edl_teacher_model_loaded"] == 1
    assert metrics["edl_teacher_sample_device_seconds"] > 0
    assert "edl_teacher_heartbeat_answering" not in metrics, "it serves alone"


def test_its_health_is_told_to_who_has_neither_certificate_nor_token(trusted: Trusted) -> None:
    for health in ("live", "ready"):
        asked = trusted.page.replace("/metrics", f"/health/{health}")
        with urllib.request.urlopen(asked, timeout=ANSWER_S) as answer:
            assert (answer.status, answer.read()) == (200, b"")


@pytest.mark.parametrize(
    ("token", "code"),
    [
        ("", grpc.StatusCode.UNAUTHENTICATED),
        ("wr0ng", grpc.StatusCode.UNAUTHENTICATED),
        ("l00k", grpc.StatusCode.PERMISSION_DENIED),
    ],
)
def test_who_has_no_token_or_another_one_is_refused_and_counted(
    trusted: Trusted, token: str, code: grpc.StatusCode
) -> None:
    reason = "forbidden" if code is grpc.StatusCode.PERMISSION_DENIED else "unauthenticated"
    name = f'edl_teacher_refused_total{{reason="{reason}"}}'
    before = trusted.metrics()[name]
    assert trusted.refused(trusted.client(token)) is code
    assert trusted.metrics()[name] == before + 1
    trusted.teacher.ask()
    assert not any("wr0ng" in line or "s3cret" in line for line in trusted.teacher.process.tail())


def test_who_trusts_another_ca_or_speaks_no_tls_does_not_get_through(
    trusted: Trusted, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path / "stranger")
    assert trusted.refused(trusted.client(ca=stranger.ca)) is grpc.StatusCode.UNAVAILABLE
    assert trusted.refused(None) is grpc.StatusCode.UNAVAILABLE
    trusted.teacher.ask()


@pytest.mark.parametrize("token", ["wr0ng", "s3cret"])
def test_metrics_are_for_viewers(trusted: Trusted, token: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match=r"40[13]"):
        trusted.metrics(token=token)


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    process, url = start_embedded()
    yield url
    process.stop()


def test_another_teacher_on_a_dead_ones_address_answers_nothing_that_was_meant_for_it(
    redis_url: str,
) -> None:
    arguments = ("--coordinator", redis_url, "--ttl", "60")
    with serving(*arguments, "--teacher-id", "dead") as dead:
        (before,) = members(redis_url)
        os.kill(dead.process.pid, signal.SIGKILL)
        assert dead.process.wait(ANSWER_S) == -signal.SIGKILL
        port = dead.address.rpartition(":")[2]
        with serving(*arguments, "--port", port, "--teacher-id", "impostor") as impostor:
            assert impostor.address == dead.address == before.facts["address"]
            meant = {"teacher_id": "dead", "incarnation": before.facts["incarnation"]}
            for name, value in meant.items():
                code = refusal(lambda n=name, v=value: impostor.ask(parameters={n: v}))  # type: ignore[misc]
                assert code is grpc.StatusCode.FAILED_PRECONDITION
            impostor.ask()
            (own,) = [m for m in members(redis_url) if m.member == "impostor"]
            assert own.facts["instance_key"] != before.facts["instance_key"]


def test_an_administrator_sends_it_away_and_nothing_is_lost(redis_url: str, tmp_path: Path) -> None:
    hold = tmp_path / "go"
    arguments = ("--coordinator", redis_url, "--teacher-id", "t1")
    registry = connect(redis_url)
    with (
        serving(*arguments, env={HOLD_VARIABLE: str(hold)}) as teacher,
        ThreadPoolExecutor(1) as pool,
    ):
        held = pool.submit(teacher.ask, HOLD)
        wait_for(lambda: any(tmp_path.glob("go.*")))  # it is in the model
        assert registry.request_drain("m", "t1")
        wait_for(lambda: "draining: asked by an administrator" in teacher.process.tail())
        hold.touch()
        assert held.result(ANSWER_S).parameters["draining"] is True
        assert teacher.process.wait(ANSWER_S) == 0
        assert not [member for member in members(redis_url) if member.member == "t1"]
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
                started = time.monotonic()
                teacher.ask()
                assert teacher.live
                assert time.monotonic() - started < 5.0
        finally:
            attacker.stop()
        assert not any("Traceback" in line for line in teacher.process.tail())


def ended(*arguments: str) -> tuple[int | None, str]:
    process = start(command("--model", STEERED, *arguments))
    try:
        return process.wait(START_S), process.tail(1)[0]
    finally:
        process.stop()


def test_beyond_loopback_without_credentials_it_does_not_start() -> None:
    code, line = ended("--host", "0.0.0.0")
    assert code == 2
    assert "--insecure" in line


def test_credentials_that_cannot_be_used_are_named_before_the_model_is_loaded(
    tmp_path: Path,
) -> None:
    for arguments in (
        ("--tokens", str(tmp_path / "none")),
        ("--tls-cert", str(tmp_path / "none"), "--tls-key", str(tmp_path / "none")),
    ):
        code, line = ended(*arguments)
        assert code == 2
        assert str(tmp_path / "none") in line

"""How an agent starts and withdraws the teacher of its machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from edl.cli import command_line
from edl.coordinator.machines import Deployment
from edl.mesh.agent import teacher_host
from edl.mesh.agent.model_cache import ModelCache
from edl.mesh.agent.settings import AgentSettings
from edl.mesh.agent.teacher_host import TeacherHost
from edl.runtime.errors import ProcessFailed
from edl.runtime.supervise import Command
from edl.tests.cli_output import output_of
from edl.tests.waiting import wait_until

WANTED = Deployment("s", "file:///model", "0" * 64)


@contextmanager
def started(folder: Path, settings: AgentSettings | None = None) -> Iterator[TeacherHost]:
    plain = AgentSettings("redis://none", "m", ("cpu",), folder)
    host = TeacherHost(settings or plain, ModelCache(folder))
    host.start()
    try:
        yield host
    finally:
        host.stop()


def settings_of(patch: pytest.MonkeyPatch, *options: object) -> AgentSettings:
    """Return the settings that `edl agent` makes of these options."""
    found: list[AgentSettings] = []
    for name in ("configure_logging", "end_with_parent"):  # they change this process
        patch.setattr(f"edl.mesh.agent.cli.{name}", lambda *_: None)
    patch.setattr("edl.mesh.agent.agent.run_agent", lambda settings, *_: found.append(settings))
    output_of(command_line("agent"), "agent", *options)
    return found[0]


def test_ttl_is_for_the_machine_and_its_teacher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[Command] = []

    def start(command: Command) -> NoReturn:
        commands.append(command)
        raise ProcessFailed("no process in this test")

    settings = settings_of(monkeypatch, "--ttl", 30, "--devices", "cpu", "--cache", tmp_path)
    monkeypatch.setattr(teacher_host, "start", start)
    monkeypatch.setattr(ModelCache, "fetch", lambda *_: tmp_path)
    with started(tmp_path, settings) as host:
        host.set_wanted(WANTED)
        wait_until(lambda: commands)
    assert settings.ttl_s == 30
    assert "--ttl=30.0" in commands[0].argv


def test_a_machine_is_idle_when_its_download_is_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(_: ModelCache, __: Deployment, check: Callable[[], None], *___: object) -> NoReturn:
        wait_until(check)  # ends by its exception
        raise AssertionError

    monkeypatch.setattr(ModelCache, "fetch", fetch)
    with started(tmp_path) as host:
        host.set_wanted(WANTED)
        wait_until(lambda: host.status.state == "fetching")
        assert not host.is_empty
        host.set_wanted(None)
        wait_until(lambda: host.status.state == "idle")
        assert host.is_empty
        assert host.status.service == ""


def test_a_changed_deployment_is_tried_at_once_though_the_former_one_still_downloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[Deployment] = []
    checks = 0

    def fetch(
        _: ModelCache, deployment: Deployment, check: Callable[[], None], *__: object
    ) -> NoReturn:
        def count() -> None:
            nonlocal checks
            check()
            checks += 1

        fetched.append(deployment)
        wait_until(count)  # ends by the exception of `check`
        raise AssertionError

    monkeypatch.setattr(ModelCache, "fetch", fetch)
    with started(tmp_path) as host:
        first = Deployment("s", "https://slow/model", "0" * 64)
        elsewhere = replace(first, model_url="https://near/model")
        other_options = replace(elsewhere, options=(("micro-batch", "8"),))
        for number, changed in enumerate((first, elsewhere, other_options), start=1):
            host.set_wanted(changed)
            wait_until(lambda number=number: len(fetched) == number)  # type: ignore[misc]
            host.set_wanted(replace(changed, max=9))  # no reason to begin again
            before = checks
            wait_until(lambda before=before: checks > before + 1)  # type: ignore[misc]
        assert fetched == [first, elsewhere, other_options]


class _CrashingTeacher:
    """A process that takes 100 s to get ready, and ends at once."""

    name, alive, returncode, last_line = "teacher of s", False, 1, ""

    def __init__(self, pass_time: Callable[[float], None]) -> None:
        self._pass_time = pass_time

    def expect(self, *_: object) -> None:
        self._pass_time(100.0)


def test_pauses_grow_though_each_start_of_the_teacher_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    passed_s: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(passed_s))
    monkeypatch.setattr(teacher_host, "time", clock)
    monkeypatch.setattr(teacher_host, "_FAILURE_PAUSE_S", (0.001, 1000.0))
    monkeypatch.setattr(teacher_host, "start", lambda _: _CrashingTeacher(passed_s.append))
    monkeypatch.setattr(ModelCache, "fetch", lambda *_: tmp_path)
    with started(tmp_path) as host:
        host.set_wanted(WANTED)
        wait_until(lambda: len(passed_s) >= 7)
    assert 0.016 <= _pauses_s(caplog)[5] <= 0.032


def _pauses_s(caplog: pytest.LogCaptureFixture) -> list[float]:
    """The pauses before the next attempts, as they were logged."""
    records = [record for record in caplog.records if "next attempt" in record.msg]
    return [float(str(record.args[1])) for record in records]  # type: ignore[index]


@pytest.mark.parametrize(("exit_code", "pause_s"), [(2, (15.0, 30.0)), (1, (2.5, 5.0))])
def test_a_teacher_that_refuses_to_start_is_retried_less_often_than_one_that_crashes(
    exit_code: int,
    pause_s: tuple[float, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def expect(*_: object) -> NoReturn:
        raise ProcessFailed("it is not ready")

    teacher = SimpleNamespace(
        name="teacher of s",
        alive=False,
        returncode=exit_code,
        last_line="edl: torch cannot be imported",
        expect=expect,
    )
    monkeypatch.setattr(teacher_host, "start", lambda _: teacher)
    monkeypatch.setattr(ModelCache, "fetch", lambda *_: tmp_path)
    with started(tmp_path) as host:
        host.set_wanted(WANTED)
        wait_until(lambda: host.status.state == "failing")
        assert "torch cannot be imported" in host.status.why
    assert pause_s[0] <= _pauses_s(caplog)[0] <= pause_s[1]

"""How a machine is asked for, whatever became of the mesh; and how busy others keep it."""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from edl.coordinator.machines import MachineBoard, Report
from edl.mesh.agent.agent import run_agent
from edl.mesh.agent.agent_directory import AgentDirectory, running_agents, wait_until_yielded
from edl.mesh.agent.cli import default_name, parse_time
from edl.mesh.agent.hardware import OtherLoad, find_devices, memory_bytes
from edl.mesh.agent.settings import AgentSettings
from edl.mesh.agent.teacher_host import TeacherHost
from edl.runtime.errors import ProcessFailed, UsageError
from edl.runtime.lifecycle import Stop
from edl.teacher.config import check_cores, parse_devices
from edl.tests.waiting import wait_until


def test_who_asks_is_heard_until_the_time_is_over_or_it_is_given_up(tmp_path: Path) -> None:
    directory = AgentDirectory(tmp_path, "m/1:2")
    with directory.lock():
        assert directory.yield_left_s() is None
        (found,) = running_agents(tmp_path, None)
        assert found.machine_id == "m/1:2"
        found.request_yield(None)
        assert directory.yield_left_s() == math.inf
        found.request_yield(60.0)
        assert 50 < (directory.yield_left_s() or 0) <= 60
        found.cancel_yield()
        found.cancel_yield()  # twice does no harm
        assert directory.yield_left_s() is None
        found.request_yield(0.001)
        wait_until(lambda: directory.yield_left_s() is None)
        (folder,) = (tmp_path / "agents").iterdir()
        for text in ("", "[]", '{"until": "soon"}', "{"):  # somebody else's
            (folder / "yield").write_text(text)
            assert directory.yield_left_s() is None


def test_an_agent_is_one_per_name_and_found_while_it_runs(tmp_path: Path) -> None:
    for _ in range(2):
        with AgentDirectory(tmp_path, "m").lock():
            with pytest.raises(UsageError, match="--machine"), AgentDirectory(tmp_path, "m").lock():
                pass
            assert len(running_agents(tmp_path, "m")) == 1
            (folder,) = (tmp_path / "agents").iterdir()
            assert folder.stat().st_mode & 0o077 == 0
            with pytest.raises(UsageError, match="no agent named n"):
                running_agents(tmp_path, "n")
        with pytest.raises(UsageError, match="no agent runs here"):
            running_agents(tmp_path, None)
    for number, name in enumerate(("..", ".", "host.example", "a/b"), 2):
        with AgentDirectory(tmp_path, name).lock():
            assert [one.machine_id for one in running_agents(tmp_path, None)] == [name]
            folders = list((tmp_path / "agents").iterdir())
            assert len([one for one in folders if one.is_dir()]) == number


def test_who_asked_waits_until_the_machine_is_free(tmp_path: Path) -> None:
    directory, told = AgentDirectory(tmp_path, "m"), list[str]()
    with directory.lock():
        next(tmp_path.rglob("state")).unlink()  # as on a full disk, where it was never written
        with pytest.raises(ProcessFailed, match="it is unknown"):
            wait_until_yielded([directory], 0.1, told.append)
        directory.write_state("draining")
        with pytest.raises(ProcessFailed, match="it is draining"):
            wait_until_yielded([directory], 0.1, told.append)
        directory.write_state("yielded")
        wait_until_yielded([directory], 5.0, told.append)
    assert told == ["m has given this machine back"]


def test_an_agent_that_starts_yielded_says_so(tmp_path: Path) -> None:
    directory, stop, told = AgentDirectory(tmp_path, "m"), Stop(), list[str]()
    with directory.lock():  # a former agent of this name
        directory.request_yield(None)
    settings = AgentSettings("memory://yielded", "m", ("cpu",), tmp_path)
    agent = threading.Thread(target=run_agent, args=(settings, stop, told.append))
    agent.start()
    try:
        wait_until(lambda: told)
        wait_until(lambda: directory.read_state() == "yielded")
    finally:
        stop.request()
        agent.join()


@pytest.mark.parametrize("shut_down", [True, False])
def test_a_teacher_that_ends_when_the_machine_shuts_down_was_not_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shut_down: bool
) -> None:
    directory, stop = AgentDirectory(tmp_path, "m"), Stop()

    class Host(TeacherHost):
        """Its teacher ends at once, with exit code 0."""

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.drained = args[-1]

        def start(self) -> None:
            if shut_down:  # agent and teacher got SIGTERM
                stop.request()
            self.drained()

    monkeypatch.setattr("edl.mesh.agent.agent.TeacherHost", Host)
    settings = AgentSettings("memory://drained", "m", ("cpu",), tmp_path)
    run_agent(settings, stop, lambda _: stop.request())
    assert directory.yield_left_s() == (None if shut_down else math.inf)


def test_an_agent_that_leaves_says_so_if_it_must_register_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, joined, join = Stop(), list[tuple[MachineBoard, int, Report]](), MachineBoard.join

    def record(
        board: MachineBoard, machine_id: str, incarnation: int, report: Report, ttl_s: float
    ) -> None:
        join(board, machine_id, incarnation, report, ttl_s)
        joined.append((board, incarnation, report))

    class Host(TeacherHost):
        def stop(self) -> None:
            wait_until(lambda: len(joined) == 2)
            super().stop()

    def stop_without_lease(_: str) -> None:
        board, incarnation, _report = joined[0]
        board.leave("m", incarnation)  # as if Redis were emptied
        stop.request()

    monkeypatch.setattr(MachineBoard, "join", record)
    monkeypatch.setattr("edl.mesh.agent.agent.TeacherHost", Host)
    settings = AgentSettings("memory://leaving", "m", ("cpu",), tmp_path)
    run_agent(settings, stop, stop_without_lease)
    assert [report.leaving for _, _, report in joined] == [False, True]


def test_times_are_read() -> None:
    assert [parse_time(text) for text in ("90", "90s", "10m", "1.5h")] == [90, 90, 600, 5400]
    for text in ("", "0", "-1", "10 minutes", "inf", "m", "1e3"):
        with pytest.raises(UsageError, match="90s, 10m"):
            parse_time(text)


def test_load_is_what_neither_the_agent_nor_its_teacher_does(tmp_path: Path) -> None:
    def busy(*ticks: int) -> None:
        whole = " ".join(map(str, [*ticks, *[0] * (10 - len(ticks))]))
        (tmp_path / "stat").write_text(f"cpu  {whole}\ncpu0 {whole}\n")

    def process(pid: int, parent: int, user: int, system: int = 0) -> None:
        (tmp_path / str(pid)).mkdir(exist_ok=True)
        words = f"S {parent} 0 0 0 0 0 0 0 0 0 {user} {system} 0 0\n"
        name = b"a ) (name) \xff"  # any bytes are allowed
        (tmp_path / str(pid) / "stat").write_bytes(b"%d (%s) %s" % (pid, name, words.encode()))

    now_s = 0.0
    busy(1000)
    process(10, 1, 100)  # the agent
    process(11, 10, 50)  # its teacher
    process(12, 11, 50, 5)  # and the teacher's predictor
    process(20, 1, 500)
    load = OtherLoad(tmp_path, lambda: now_s, own=10)
    per_s = os.sysconf("SC_CLK_TCK")
    now_s = 2.0
    process(12, 11, 50 + 3 * per_s, 5)
    process(20, 1, 500 + per_s)
    busy(1000 + 3 * per_s, 0, per_s, 10**6, 10**6)  # idle, and waiting for disks, is not busy
    assert load.cores() == pytest.approx(0.5)
    whole = (tmp_path / "stat").read_text()
    (tmp_path / "stat").unlink()
    assert load.cores() == pytest.approx(0.5), "unknown does not count as idle"
    (tmp_path / "stat").write_text(whole)
    now_s = 3.0
    assert load.cores() == pytest.approx(0.0)


def test_this_machine_is_found_out(tmp_path: Path) -> None:
    now = iter([0.0, 1.0])
    assert 0 <= OtherLoad(clock=lambda: next(now)).cores() < 1e6
    assert memory_bytes() > 1 << 20
    assert parse_devices(",".join(find_devices()))
    assert default_name()
    with pytest.raises(UsageError, match="--load"):  # of a system that does not tell
        OtherLoad(tmp_path)
    for number in range(2):
        (tmp_path / "driver" / "nvidia" / "gpus" / f"0000:{number}").mkdir(parents=True)
    assert find_devices(tmp_path) == ("gpu:0", "gpu:1"), "before cores"


def test_a_system_without_affinity_has_one_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sched_getaffinity", "sched_setaffinity"):  # macOS
        monkeypatch.delattr(os, name)
    devices = find_devices(tmp_path)
    assert devices == ("cpu",)
    check_cores(parse_devices(",".join(devices)))

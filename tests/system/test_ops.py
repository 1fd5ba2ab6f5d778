"""The commands of operators against a real mesh: what they do, what they print, how they end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edl import __version__
from edl.coordinator import fetch_status
from edl.distill_reader import DistilReader
from edl.mesh.local import LocalMesh
from edl.proto import coordinator_pb2 as pb
from edl.supervise import python_command, start
from edl.tests.ground.programs import wait_for
from edl.tests.system.conftest import TTL_S, Batches, add_teachers

PACE_S = 0.02 / 8


def edl(*arguments: str, url: str = "") -> subprocess.CompletedProcess[str]:
    """Run `edl ...` as a user does."""
    command = [sys.executable, "-P", "-m", "edl", *arguments]
    if url:
        command += ["--coordinator", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def events(mesh: LocalMesh) -> list[dict[str, Any]]:
    done = edl("events", "--json", "--last", "0", url=mesh.url)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def kinds_about(log: list[dict[str, Any]], subject: str) -> list[str]:
    return [event["kind"] for event in log if event["subject"] == subject]


def events_until(mesh: LocalMesh, *wanted: tuple[str, str]) -> list[dict[str, Any]]:
    """The whole log, once these (kind, subject) are in it."""
    log: list[dict[str, Any]] = []

    def there() -> bool:
        log[:] = events(mesh)
        return all(kind in kinds_about(log, subject) for kind, subject in wanted)

    wait_for(there)
    return log


@pytest.fixture
def mesh(set_pace: Callable[[float], None], tmp_path: Path) -> Iterator[LocalMesh]:
    set_pace(PACE_S)
    options = ["--ttl", str(TTL_S)]
    with LocalMesh(log_dir=tmp_path, coordinator_options=options) as mesh:
        yield mesh


def test_a_teacher_is_drained_by_command_and_the_log_says_all_that_happened(
    mesh: LocalMesh,
) -> None:
    add_teachers(mesh, "a", "b")
    source = Batches()
    with DistilReader(source, service="slow", coordinator=mesh.url, teachers_min=2) as reader:
        iterator = iter(reader)
        batches = [next(iterator) for _ in range(20)]
        done = edl("drain", "a", url=mesh.url)
        assert (done.returncode, done.stdout) == (0, "draining slow/a\n"), done.stderr
        while mesh.teachers["a"].alive:
            batches.append(next(iterator))
        assert mesh.teachers["a"].returncode == 0
        mesh.kill("b")
        events_until(mesh, ("lost", "b"))  # a student that left earlier would lose nothing by it
        add_teachers(mesh, "c")
        while "c" not in reader.stats.teachers:
            batches.append(next(iterator))
        batches += source.rest(iterator)
    source.check(batches)
    log = events_until(mesh, ("gone", "job/0"), ("lost", "b"))
    assert kinds_about(log, "a")[:3] == ["registered", "draining", "left"]
    assert kinds_about(log, "b")[:2] == ["registered", "lost"]
    assert "subscribed" in kinds_about(log, "job/0")
    assert all(event["text"] and event["time_ms"] and event["id"] for event in log)
    # Every change of the student's set names its cause.
    causes = [event for event in log if event["kind"] == "assigned"]
    assert any("a" in event["text"] and "a" in event["before"] for event in causes)
    assert any("b" in event["text"] and "b" in event["before"] for event in causes)
    assert any("c" in event["text"] and "c" in event["after"] for event in causes)


def test_events_are_followed_until_ctrl_c(mesh: LocalMesh) -> None:
    follower = start(
        python_command("events", "edl", "events", "--follow", "--coordinator", mesh.url)
    )
    try:
        add_teachers(mesh, "a")
        follower.expect(r"slow registered\s+a ", 10)
        mesh.kill("a")
        follower.expect(r"slow lost\s+a ", TTL_S + 5)
        os.kill(follower.pid, 2)
        assert follower.wait(10) == 0
    finally:
        follower.stop()


def test_who_is_not_there_cannot_drain_and_the_error_says_who_is(mesh: LocalMesh) -> None:
    add_teachers(mesh, "gpu-17")
    done = edl("drain", "gpu-71", url=mesh.url)
    assert done.returncode == 2
    assert "gpu-17" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert edl("drain", url=mesh.url).returncode == 2
    done = edl("drain", "--host", "nowhere", url=mesh.url)
    assert done.returncode == 2
    assert "nowhere" in done.stderr


def test_services_are_listed_and_shown(mesh: LocalMesh) -> None:
    done = edl("service", "list", url=mesh.url)
    assert done.returncode == 0
    assert "no service" in done.stdout
    add_teachers(mesh, "a")
    wait_for(lambda: bool(status(mesh).leader))
    wait_for(lambda: bool(status(mesh).content_id))  # declared when a recovery is over
    assert "slow" in edl("service", "list", url=mesh.url).stdout
    service = shown(mesh)
    assert service["leader"]
    assert service["teacher_states"] == {"serving": 1}
    text = edl("service", "show", "slow", url=mesh.url).stdout
    assert service["content_id"] in text
    done = edl("service", "show", "fast", url=mesh.url)
    assert done.returncode == 2
    assert "'edl service list'" in done.stderr
    done = edl("service", "upgrade", "slow", "--content", service["content_id"], url=mesh.url)
    assert done.returncode == 2
    done = edl("service", "upgrade", "slow", "--content", "C2", url=mesh.url)
    assert done.returncode == 0, done.stderr
    assert "No teacher" in done.stdout
    assert shown(mesh)["next_content_id"] == "C2"


def test_the_doctor_finds_a_mesh_well_and_says_what_ails_it(mesh: LocalMesh) -> None:
    add_teachers(mesh, "a")
    wait_for(lambda: bool(status(mesh).leader))
    done = edl("doctor", "--json", url=mesh.url)
    findings = json.loads(done.stdout)
    assert done.returncode == 0, findings
    assert {"well", "doubt"} >= {finding["level"] for finding in findings}
    text = edl("doctor", url=mesh.url).stdout
    for words in (__version__, "Redis", "clock", "answers in", "serve", "reached from here"):
        assert words in text
    assert re.search(r"Redis: (redis|valkey) \d+\.\d+", text), text
    mesh.coordinator.kill()
    mesh.coordinator.wait(5)
    done = edl("doctor", url=mesh.url)  # its Redis has gone with it
    assert done.returncode == 1
    assert "WRONG" in done.stdout
    assert "does not answer" in done.stdout


def status(mesh: LocalMesh) -> pb.ServiceStatus:
    """Of the one service, as `edl service show` gets it; empty while there is none."""
    services = fetch_status(mesh.url, "slow").services
    return services[0] if services else pb.ServiceStatus()


def shown(mesh: LocalMesh) -> dict[str, Any]:
    done = edl("service", "show", "slow", "--json", url=mesh.url)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))

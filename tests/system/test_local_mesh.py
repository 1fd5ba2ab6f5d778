"""A mesh on this machine: what starts, what can be done to it, and that nothing stays."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edl.errors import ProcessFailed, UsageError
from edl.mesh.local import LocalMesh, TeacherSpec

SPEC = TeacherSpec("digits", "edl.tests.teacher.networks:convolution", ttl_s=2.0)
ENDS_WITHIN_S = 20.0


@pytest.fixture(scope="module")
def mesh() -> Iterator[LocalMesh]:
    with LocalMesh() as running:
        yield running


def test_teachers_come_and_go_each_in_its_way(mesh: LocalMesh) -> None:
    assert mesh.url.startswith("redis://127.0.0.1:")
    assert mesh.coordinator.alive
    for name in ("killed", "drained"):
        mesh.start_teacher(name, SPEC)
    addresses = {mesh.wait_ready(name) for name in ("killed", "drained")}
    assert len(addresses) == 2
    assert all(address.startswith("127.0.0.1:") for address in addresses)

    mesh.suspend("killed")
    mesh.resume("killed")
    mesh.kill("killed")
    mesh.drain("drained")

    assert mesh.teachers["killed"].wait(ENDS_WITHIN_S) == -signal.SIGKILL
    assert mesh.teachers["drained"].wait(ENDS_WITHIN_S) == 0
    assert mesh.coordinator.alive


def test_a_suspended_teacher_ends_in_order_when_the_mesh_does() -> None:
    """Its SIGTERM is pending when it goes on, and may be taken by any of its threads."""
    with LocalMesh() as mesh:
        mesh.add_teacher("held", SPEC)
        mesh.suspend("held")
    assert mesh.teachers["held"].returncode == 0


def test_a_name_is_given_once(mesh: LocalMesh) -> None:
    mesh.start_teacher("once", SPEC)
    with pytest.raises(UsageError, match="once"):
        mesh.start_teacher("once", SPEC)
    mesh.kill("once")


def test_a_teacher_that_cannot_start_says_why(mesh: LocalMesh) -> None:
    with pytest.raises(ProcessFailed, match="/nope"):
        mesh.add_teacher("none", replace(SPEC, model="/nope"))


def test_what_check_raises_ends_a_wait_and_the_mesh() -> None:
    class Enough(Exception):
        pass

    looks = 0

    def check() -> None:
        nonlocal looks
        looks += 1
        if looks > 1:
            raise Enough

    mesh = LocalMesh(check=check)
    with pytest.raises(Enough), mesh:
        raise AssertionError("a coordinator is not ready within one look")
    assert not mesh.coordinator.alive


def test_stop_ends_everything_and_may_be_repeated(tmp_path: Path) -> None:
    with LocalMesh(log_dir=tmp_path) as mesh:
        mesh.add_teacher("t", SPEC)
        pids = [mesh.coordinator.pid, mesh.teachers["t"].pid]
    mesh.stop()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert {path.name for path in tmp_path.iterdir()} == {"coordinator.log", "t.log"}
    assert "coordinator ready" in (tmp_path / "coordinator.log").read_text()


def test_a_mesh_that_was_not_started_has_no_coordinator() -> None:
    with pytest.raises(UsageError, match="not been started"):
        _ = LocalMesh().coordinator

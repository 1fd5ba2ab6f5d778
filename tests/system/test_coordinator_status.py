"""`edl status` as a process: tables and JSON, once or for as long as one looks."""

from __future__ import annotations

import json
import signal

import pytest

from edl.coordinator.embedded import free_port, start_embedded
from edl.supervise import python_command, start
from edl.tests.ground.programs import wait_for
from edl.tests.system.coordinator_process import (
    START_S,
    Coordinator,
    Members,
    status,
)


def test_status_of_nothing_is_one_line_and_69() -> None:
    code, lines = status("--coordinator", f"redis://127.0.0.1:{free_port()}")
    assert (code, len(lines)) == (69, 1)
    assert "does not answer" in lines[0]


def test_status_without_a_manager_says_how_to_start_one() -> None:
    redis, url = start_embedded()
    code, lines = status("--coordinator", url)
    redis.stop()
    assert (code, len(lines)) == (69, 1)
    assert "edl coordinator serve" in lines[0]


def test_status_shows_the_mesh_as_a_table_and_as_json(
    coordinator: Coordinator, members: Members
) -> None:
    members.teacher("t1")
    members.teacher("t2")
    student = members.student()
    wait_for(lambda: student.teachers == ["t1", "t2"])
    code, lines = status("--coordinator", coordinator.url)
    assert code == 0
    for said in ("t1:1", "t2:1", "j/0", "2/3", "2 teachers, 1 student", coordinator.address):
        assert any(said in line for line in lines), said
    code, lines = status("--coordinator", coordinator.url, "--json", "--service", "s")
    assert code == 0
    (service,) = json.loads("".join(lines))["services"]
    assert [t["serves"] for t in service["teachers"]] == [["j/0"], ["j/0"]]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_status_of_a_service_that_is_not_there_fails(
    coordinator: Coordinator, form: list[str]
) -> None:
    code, lines = status("--coordinator", coordinator.url, "--service", "nope", *form)
    assert code == 2
    assert any("no service 'nope'" in line for line in lines)


def test_watching_into_a_file_prints_one_table_after_another(coordinator: Coordinator) -> None:
    process = start(
        python_command("status", "edl", "status", "--coordinator", coordinator.url, "--watch")
    )
    try:
        wait_for(lambda: sum("service managers" in line for line in process.tail(500)) >= 2)
    finally:
        process.stop()


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_watching_ends_cleanly_by_ctrl_c(coordinator: Coordinator, form: list[str]) -> None:
    arguments = ("status", "--coordinator", coordinator.url, "--watch", *form)
    terminal = {"FORCE_COLOR": "1"}  # lets rich believe in one
    process = start(python_command("status", "edl", *arguments, env=terminal))
    process.expect(r"^\{.*\}$" if form else "service managers", START_S)
    process.send_signal(signal.SIGINT)
    assert process.wait(10.0) == 0
    assert not any("Traceback" in line for line in process.tail(100))

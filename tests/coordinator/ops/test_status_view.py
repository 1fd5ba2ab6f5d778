"""`edl status`: the tables say what is there; the JSON form is whole and stable."""

from __future__ import annotations

import io
import json
from typing import get_args

import pytest
from rich.console import Console

from edl.coordinator.ops.status_view import render, to_json, volume_bar
from edl.proto import coordinator_pb2 as pb
from edl.scheduler.outliers import IN_WORDS, Cause


def mesh() -> pb.MeshStatus:
    report = pb.StudentReport(
        service="digits", student_id="job/0", want=3, needed=2, state="source_wait",
        volume_bytes=64 << 20, lower_bytes=128 << 20, upper_bytes=256 << 20,
        starved_seconds=1.25, blocked_seconds=2.5, source_wait_seconds=3.75,
        samples_per_second=1234.5, resends=7, incarnation=2**60,
    )  # fmt: skip
    teacher = pb.Teacher(
        teacher_id="t1", address="10.0.0.1:5000", state="serving", device="cpu", slots=4,
        in_flight=2, t_t_seconds=0.0021, samples_per_second=476.2, lease_remaining_s=5.5,
        admission="admitted",
    )  # fmt: skip
    service = pb.ServiceStatus(
        name="digits",
        teachers=[teacher, pb.Teacher(teacher_id="t2", state="draining", admission="admitted")],
        students=[pb.StudentStatus(report=report, assigned=["t1"], lease_remaining_s=5.0)],
        term=9,
        counter=3,
        teacher_count=2,
        student_count=1,
        teacher_states={"serving": 1, "draining": 1},
        student_states={"source_wait": 1},
        samples_per_second=1234.5,
        leader="127.0.0.1:4000",
    )
    return pb.MeshStatus(services=[service], managers=["127.0.0.1:4000"], redis_time_ms=123)


def drawn(status: pb.MeshStatus) -> str:
    out = io.StringIO()
    Console(file=out, width=160).print(render(status))
    return out.getvalue()


@pytest.mark.parametrize(
    "said",
    [
        "127.0.0.1:4000", "digits", "2 teachers, 1 student", "t1", "10.0.0.1:5000", "serving",
        "draining", "2.1", "476", "2/4", "job/0", "source wait", "1,234", "1.2", "2.5", "3.8",
        "7", "64 MiB of 256 MiB",
    ],
)  # fmt: skip
def test_the_table_says(said: str) -> None:
    assert said in drawn(mesh())


def test_a_foreign_server_shows_what_it_speaks_and_not_what_nobody_counts() -> None:
    status = mesh()
    teacher = status.services[0].teachers[0]
    teacher.MergeFrom(pb.Teacher(voucher="h:1", protocol="paddle-serving", device="foreign"))
    teacher.in_flight, teacher.samples_per_second = 0, 0
    (row,) = [row for row in drawn(status).splitlines() if row.strip().startswith("t1")]
    assert row.split()[3:8] == ["foreign", "(paddle-serving)", "2.1", "-", "-/4"]


def test_who_serves_whom_stands_in_the_teachers_row() -> None:
    rows = drawn(mesh()).splitlines()
    (serving,) = [row for row in rows if row.strip().startswith("t1")]
    (idle,) = [row for row in rows if row.strip().startswith("t2")]
    assert "job/0" in serving
    assert "job/0" not in idle


@pytest.mark.parametrize(
    ("admission", "state"),
    [("admitted", "serving"), ("refused: it does not answer", "refused"), ("", "waiting")],
)
def test_a_teacher_that_students_are_not_given_does_not_look_as_if_it_served(
    admission: str, state: str
) -> None:
    status = mesh()
    status.services[0].teachers[0].admission = admission
    (row,) = [row for row in drawn(status).splitlines() if row.strip().startswith("t1")]
    assert row.split()[2] == state


def test_a_mesh_too_large_for_a_table_says_how_much_is_left_out() -> None:
    status = mesh()
    status.services[0].teacher_count = 10_000
    assert "... 2 of 10,000 teachers, those that need a look first; --all" in drawn(status)
    assert "--all" not in drawn(mesh())


def test_unusual_states_are_counted_under_the_heading() -> None:
    assert "teachers: 1 draining, 1 serving; students: 1 source wait" in drawn(mesh())


def test_a_service_without_a_leader_and_one_that_is_upgraded_say_so() -> None:
    status = mesh()
    status.services[0].leader, status.services[0].next_content_id = "", "C2"
    assert "no manager leads" in drawn(status)
    assert "upgrade to C2" in drawn(status)


def test_the_number_desired_is_shown_where_it_is_another_one() -> None:
    status = mesh()
    assert "desired" not in drawn(status)
    assert to_json(status)["services"][0]["desired_teachers"] is None
    status.services[0].desired_teachers = status.services[0].teacher_count
    assert "desired" not in drawn(status)
    status.services[0].desired_teachers += 3
    assert f"{status.services[0].desired_teachers} desired" in drawn(status)


def test_stragglers_are_named_with_the_students_that_they_hold_up() -> None:
    status = mesh()
    assert "straggler" not in drawn(status)
    status.services[0].students[0].report.stragglers.append("t2")
    assert "teacher t2 is a straggler to job/0" in drawn(status)


@pytest.mark.parametrize("cause", get_args(Cause))
def test_the_ejected_are_named_with_who_did_it_and_why(cause: Cause) -> None:
    status = mesh()
    assert "ejected" not in drawn(status)
    status.services[0].students[0].report.MergeFrom(
        pb.StudentReport(ejected=["t2"], ejected_for=[cause])
    )
    assert f"teacher t2 is ejected by job/0: it {IN_WORDS[cause]}" in drawn(status)
    (student,) = to_json(status)["services"][0]["students"]
    assert (student["ejected"], student["ejected_for"]) == (["t2"], [cause])


def test_those_that_contradict_each_other_are_named_until_there_is_another_one() -> None:
    status = mesh()
    assert "contradict" not in drawn(status)
    status.services[0].students[0].report.MergeFrom(pb.StudentReport(disputed=["t1", "t2"]))
    assert "teachers t1, t2 contradict each other to job/0: another one is needed" in drawn(status)


def test_an_empty_mesh_is_said_in_words() -> None:
    assert "no teacher and no student" in drawn(pb.MeshStatus())


def test_nothing_is_cut_off_in_a_narrow_terminal() -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(render(mesh()))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    for whole in ("10.0.0.1", "2.1", "476", "1,234", "1.2", "2.5", "3.8", "job/0", "64 MiB"):
        assert any(whole in line for line in lines), whole


def test_the_json_form() -> None:
    document = json.loads(json.dumps(to_json(mesh())))
    assert document["managers"] == ["127.0.0.1:4000"]
    assert document["redis_time_ms"] == 123
    (service,) = document["services"]
    assert (service["name"], service["term"], service["counter"]) == ("digits", 9, 3)
    assert [t["serves"] for t in service["teachers"]] == [["job/0"], []]
    assert service["teachers"][0]["t_t_seconds"] == 0.0021
    (student,) = service["students"]
    assert student["assigned"] == ["t1"]
    assert student["needed"] == 2
    assert student["incarnation"] == 2**60
    assert student["lease_remaining_s"] == 5.0
    assert student["priority"] == 0  # fields at their default are there, too


@pytest.mark.parametrize(
    ("volume", "lower", "upper", "bar"),
    [
        (0, 128, 256, "░░░░░|░░░░"),
        (77, 128, 256, "███░░|░░░░"),
        (128, 128, 256, "█████|░░░░"),
        (256, 128, 256, "█████|████"),
        (9999, 0, 256, "|█████████"),
        (5, 0, 0, "-"),
    ],
)
def test_the_volume_bar(volume: int, lower: int, upper: int, bar: str) -> None:
    assert volume_bar(volume, lower, upper).plain == bar

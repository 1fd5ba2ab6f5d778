"""What `edl status`, `edl service` and `edl events` show: tables, lines, and whole, stable JSON."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from edl.cli import command_line
from edl.coordinator.job_queue import JobProgress, QueueBoard
from edl.coordinator.jobs import JobBoard
from edl.coordinator.ops import jobs_view, queue_view, status_view, text_output
from edl.coordinator.ops.status_view import render, to_json, volume_bar
from edl.coordinator.registry.schema import LogEntry
from edl.coordinator.store.memory_store import MemoryStore
from edl.proto import coordinator_pb2 as pb
from edl.scheduler.circuit_breakers import IN_WORDS, Cause
from edl.scheduler.job_states import ElasticJobState
from edl.tests.cli_output import printed, run
from edl.tests.coordinator.scripted_manager import served
from edl.tests.stores import of_job, of_queue


def row_of(status: pb.MeshStatus, name: str) -> list[str]:
    """The words in the one row of the table that begins with `name`."""
    rows = [line.split() for line in printed(render(status)).splitlines()]
    (row,) = [row for row in rows if row[:1] == [name]]
    return row


@pytest.fixture
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
        name="digits", term=9, counter=3, teacher_count=2, student_count=1,
        teachers=[teacher, pb.Teacher(teacher_id="t2", state="draining", admission="admitted")],
        students=[pb.StudentStatus(report=report, assigned=["t1"], lease_remaining_s=5.0)],
        teacher_states={"serving": 1, "draining": 1}, student_states={"source_wait": 1},
        samples_per_second=1234.5, leader="127.0.0.1:4000",
    )  # fmt: skip
    return pb.MeshStatus(services=[service], managers=["127.0.0.1:4000"], redis_time_ms=123)


def test_brackets_in_names_are_shown(mesh: pb.MeshStatus) -> None:
    service = mesh.services[0]
    service.name = service.leader = "s[bold]"
    service.teachers[0].teacher_id = service.students[0].assigned[0] = "t[red]"
    service.students[0].report.student_id = "job[b]/0"
    shown = printed(render(mesh))
    assert all(name in shown for name in ("s[bold]", "t[red]", "job[b]/0"))
    for table in (status_view.service_table([service]), status_view.service_details(service)):
        assert "s[bold]" in printed(table)


def test_what_others_wrote_steers_no_terminal_and_a_pipe_has_a_hundred_columns(
    mesh: pb.MeshStatus,
) -> None:
    long = "teacher-of-a-service-with-a-long-name-7d9f8b6c5-x2lqz.edl-teachers.svc.cluster.local"
    mesh.services[0].teachers[1].teacher_id = long
    evil, harmless = "\x1b]0;owned\x07", r"\x1b]0;"
    mesh.services[0].teachers[0].teacher_id = mesh.services[0].leader = evil
    with served() as manager:
        manager.manager.mesh = mesh
        manager.registry.add_events("digits", [LogEntry("lost", evil, evil)])
        for words in ("events", "status --service digits", "describe service digits"):
            command, *more = words.split()
            told = run(command_line(command), command, *more, "--redis", manager.url).output
            assert harmless in told
            assert set(told) & {"\x1b", "\x07"} == set(), words
            if command == "status":
                assert max(map(len, told.splitlines())) <= 100
                assert long[:8] in told, "it goes on in the next line"


@pytest.mark.parametrize("width", [80, 160])
def test_the_tables_show_every_figure(mesh: pb.MeshStatus, width: int) -> None:
    text = printed(render(mesh), width)
    assert max(map(len, text.splitlines())) <= width
    for shown in (
        "127.0.0.1:4000", "digits", "2 teachers, 1 student", "t1", "10.0.0.1", "2.1", "476",
        "job/0", "1,234", "1.2", "2.5", "3.8", "64 MiB",
    ):  # fmt: skip
        assert shown in text
    assert printed(render(pb.MeshStatus())).strip()
    if width > 80:
        row = row_of(mesh, "t1")
        assert {"10.0.0.1:5000", "serving", "cpu", "2/4", "job/0"} <= set(row)
        assert "job/0" not in row_of(mesh, "t2")


def test_rows_of_foreign_teachers_and_of_those_that_are_not_admitted(mesh: pb.MeshStatus) -> None:
    teacher = mesh.services[0].teachers[0]
    teacher.MergeFrom(pb.Teacher(voucher="h:1", protocol="paddle-serving", device="foreign"))
    teacher.in_flight, teacher.samples_per_second = 0, 0  # nobody counts them
    assert " ".join(row_of(mesh, "t1")[2:8]) == "serving foreign (paddle-serving) 2.1 - -/4"
    for admission, state in (("refused: it does not answer", "refused"), ("", "waiting")):
        teacher.admission = admission
        assert row_of(mesh, "t1")[2] == state


def test_what_is_unusual_of_a_service_is_shown(mesh: pb.MeshStatus) -> None:
    (service,) = mesh.services
    service.desired_teachers = 2  # as many as there are: not worth a word
    plain = printed(render(mesh))
    service.teacher_count, service.desired_teachers = 10_000, 5
    service.next_content_id, service.leader = "C2", ""
    for teacher, kind in zip(service.teachers, ("probabilities", "logits"), strict=True):
        teacher.output_kinds.append(f"out={kind}")
    text = printed(render(mesh))
    outputs = "outputs: out=logits, out=probabilities"
    for shown in (
        "2 of 10,000 teachers",
        "no manager leads",
        "upgrade to C2",
        "5 desired",
        outputs,
    ):
        assert shown in text
        assert shown not in plain


@pytest.mark.parametrize("cause", get_args(Cause))
def test_teachers_that_a_student_complains_of_are_shown(mesh: pb.MeshStatus, cause: Cause) -> None:
    plain = printed(render(mesh))
    assert not {"straggler", "ejected", "contradict"} & set(plain.split())
    told: dict[str, Any] = {"stragglers": ["t2"], "ejected": ["t2"], "ejected_for": [cause]}
    report = mesh.services[0].students[0].report
    report.MergeFrom(pb.StudentReport(**told, disputed=["t1", "t2"]))
    text = printed(render(mesh))
    assert "teacher t2 is a straggler to job/0" in text
    assert f"teacher t2 is ejected by job/0: it {IN_WORDS[cause]}" in text
    assert "teachers t1, t2 contradict each other, as job/0" in text
    assert "probed now" not in text
    report.half_open.append("t2")
    assert f"it {IN_WORDS[cause]}, and is probed now" in printed(render(mesh))


def test_the_json_of_a_mesh_has_every_field(mesh: pb.MeshStatus) -> None:
    document = json.loads(json.dumps(to_json(mesh)))
    assert (document["managers"], document["redis_time_ms"]) == (["127.0.0.1:4000"], 123)
    (service,) = document["services"]
    assert (service["name"], service["term"], service["counter"]) == ("digits", 9, 3)
    assert service["desired_teachers"] is None
    assert [t["serves"] for t in service["teachers"]] == [["job/0"], []]
    assert service["teachers"][0]["t_t_seconds"] == 0.0021
    (student,) = service["students"]
    assert (student["assigned"], student["needed"]) == (["t1"], 2)
    assert (student["incarnation"], student["lease_remaining_s"]) == (2**60, 5.0)
    assert student["priority"] == 0  # fields at their default are there, too


@pytest.mark.parametrize(
    ("volume", "lower", "upper", "bar"),
    [
        (0, 128, 256, "░░░░░|░░░░"), (77, 128, 256, "███░░|░░░░"), (128, 128, 256, "█████|░░░░"),
        (256, 128, 256, "█████|████"), (9999, 0, 256, "|█████████"), (5, 0, 0, "-"),
    ],
)  # fmt: skip
def test_the_volume_bar(volume: int, lower: int, upper: int, bar: str) -> None:
    assert volume_bar(volume, lower, upper).plain == bar


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"next_content_id": "C2", "upgrade_at": "epoch"}, "to C2, each at its next epoch"),
        ({"next_content_id": "C2", "upgrade_at": "now"}, "at once"),
        ({"leader": "", "desired_teachers": 0, "desired_reason": "idle"}, "0 teachers: idle"),
    ],
)
def test_a_service_has_a_line_and_its_details(fields: dict[str, Any], shown: str) -> None:
    known: dict[str, Any] = {
        "name": "resnet", "leader": "10.0.0.1:7000", "teacher_count": 5, "student_count": 3,
        "teacher_states": {"serving": 4, "draining": 1}, "student_states": {"steady": 3},
        "wanted": 6, "assigned": 4, "samples_per_second": 1234.5, "content_id": "C1",
        "content_teachers": {"C1": 3, "C2": 2}, "content_students": {"C1": 2, "C2": 1},
    }  # fmt: skip
    plain, service = pb.ServiceStatus(**known), pb.ServiceStatus(**{**known, **fields})
    _, first, second = printed(status_view.service_table([plain, service])).splitlines()
    assert all(shown in first for shown in ("resnet", "5 (1 draining, 4 serving)", "4/6", "1,234"))
    assert ("none" in second) == (not service.leader)
    assert shown not in printed(status_view.service_details(plain))
    text = printed(status_view.service_details(service))
    assert shown in text
    assert "3 teachers, 2 students" in text
    assert "1 students" not in text
    document = json.loads(json.dumps(status_view.summary_json(service)))
    assert document["content_teachers"] == {"C1": 3, "C2": 2}
    assert document["desired_teachers"] == fields.get("desired_teachers")
    assert "teachers" not in document


def queue_of(*states: ElasticJobState) -> QueueBoard:
    board = QueueBoard(MemoryStore())
    assert board.lead("r", {"host": "h1", "slots": 4, "taken": [0, 2]}, 60.0)
    for number, state in enumerate(states):
        submitted = board.submit(f"j{number}", {})
        assert submitted
        assert board.write_progress(
            of_queue(board, "r"), f"j{number}", submitted, JobProgress(state)
        )
    return board


def test_elastic_jobs_are_counted_by_their_state() -> None:
    board = queue_of("creating", "running", "failed", "running", "succeeded")
    found = queue_view.read_queue(board, "main")
    assert found
    assert "2 running, 1 waiting, 1 failed; fleet on h1: 2 of 4" in queue_view.line(found)
    assert queue_view.to_json(found) == {
        "queue": "main", "fleet": "h1", "slots": 4, "taken": 2,
        "jobs": {"creating": 1, "running": 2, "failed": 1, "succeeded": 1},
    }  # fmt: skip
    board.resign("r")
    found = queue_view.read_queue(board, "night")
    assert found
    assert "2 lost, 1 waiting, 1 failed; no agent runs jobs now" in queue_view.line(found)
    assert queue_view.to_json(found)["fleet"] is None
    assert queue_view.to_json(found)["jobs"]["lost"] == 2
    board = queue_of("succeeded", "failed")
    board.resign("r")
    assert not queue_view.read_queue(board, "main"), "all of its jobs are over"


@pytest.fixture
def trainings() -> JobBoard:
    """Job digits: two generations, three ranks, of which the second is slow."""
    board = JobBoard(MemoryStore())
    board.join("digits", "a", {"host": "10.0.0.1", "phase": "running", "says": ""}, 600.0)
    board.join("digits", "b", {"host": "10.0.0.2", "phase": "waiting"}, 600.0)
    board.lead("digits", "a", 600.0)
    board.publish("digits", of_job(board, "digits", "a"), 1, {})
    for number, ranks, why in ((1, 2, "reason 1"), (2, 3, "ValueError: [x] is no [/y]")):
        told = {"generation": number, "ranks": ranks, "nodes": ["a", "b"], "restored": 9 * number}
        board.add_event("digits", {"kind": "generation", "why": why, **told})
        board.add_event("digits", {"kind": "stepping", "generation": number, "after_s": 5.5})
    for rank, row_s in enumerate((0.001, 0.004, 0.001)):
        facts = {"node": "a", "step": 40 + rank, "steps": 90, "row_s": [row_s] * 5, "step_s": 0.01}
        board.report("digits", 1, rank, facts)
    return board


def test_a_training_shows_its_timeline_its_ranks_and_the_straggler(trainings: JobBoard) -> None:
    (state,) = jobs_view.read_jobs(trainings)
    assert (state.state, state.step, state.steps, state.straggler) == ("training", 42, 90, 1)
    text = printed(jobs_view.render(state, 0))
    for shown in ("step 42 of 90", "2 -> 3", "+5.5 s", "ValueError: [x] is no [/y]"):
        assert shown in text
    (slow,) = [line for line in text.splitlines() if "straggler" in line]
    assert slow.split()[:3] == ["1", "a", "41"]
    few = printed(jobs_view.render(state, 1))
    assert "straggler" in few, "ranks that need a look come first"
    assert few.count("\n") == text.count("\n") - 2
    told = jobs_view.to_json(state)
    assert [one["ranks"] for one in told["generations"]] == [2, 3]
    assert told["generations"][1]["first_step_after_s"] == 5.5
    assert [one["rank"] for one in told["ranks"]] == [0, 1, 2]
    assert [one["node"] for one in told["nodes"]] == ["a", "b"]
    assert (told["straggler"], told["outcome"]) == (1, None)
    over = {"kind": "failed", "report": "step 7 failed 3 times"}
    assert trainings.finish("digits", of_job(trainings, "digits", "a"), 1, over)
    (state,) = jobs_view.read_jobs(trainings)
    assert state.state == "failed"
    assert over["report"] in printed(jobs_view.render(state, 0))


def event(kind: str = "lost", **fields: Any) -> pb.Event:
    return pb.Event(
        service="resnet", id="1-0", time_ms=1_700_000_000_123, kind=kind, subject="p4-3",
        text="its lease ran out", **fields,
    )  # fmt: skip


def test_lines_of_the_log_have_columns_and_their_json_every_field() -> None:
    told = [text_output.event_text(event(kind)) for kind in ("lost", "registered", "upgrade")]
    assert all(".123 resnet " in line.plain for line in told)
    assert len({line.plain.index("p4-3") for line in told}) == 1
    assert all(line.spans for line in told), "kinds are coloured"
    assigned = event("assigned", before=["a", "b"], after=["b", "c"])
    assert text_output.event_text(assigned).plain.endswith("[+c -a]")
    assert "[" not in text_output.event_text(event("assigned", before=["a"], after=["a"])).plain
    document = json.loads(text_output.event_json(event("assigned", after=["a"])))
    assert set(document) == {field.name for field in pb.Event.DESCRIPTOR.fields}
    assert (document["after"], document["before"]) == (["a"], [])

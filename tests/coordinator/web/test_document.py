"""The document that the page draws: states, ghosts, and changes that rebuild it exactly."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from edl.coordinator.web.feed import DEPARTED_S, Document, LatestDocument, difference, document_of
from edl.proto import coordinator_pb2 as pb

from .scripted_mesh import ScriptedMesh

S = "resnet"


def mesh(*teachers: pb.Teacher, assigned: tuple[str, ...] = ()) -> pb.MeshStatus:
    report = pb.StudentReport(service=S, student_id="job/0", state="steady")
    student = pb.StudentStatus(report=report, assigned=assigned)
    service = pb.ServiceStatus(name=S, teachers=teachers, students=[student])
    return pb.MeshStatus(services=[service], managers=["b:1", "a:1"], redis_time_ms=1_000_000)


def teacher(name: str, **fields: Any) -> pb.Teacher:
    known = {"teacher_id": name, "address": "node:1", "state": "serving", "admission": "admitted"}
    return pb.Teacher(**{**known, **fields})


def event(kind: str, subject: str) -> pb.Event:
    return pb.Event(service=S, id="1-1", kind=kind, subject=subject)


@pytest.mark.parametrize(
    ("fields", "assigned", "state"),
    [
        ({}, ("t",), "serving"),
        ({}, (), "idle"),
        ({"admission": ""}, (), "waiting"),
        ({"admission": "no answer"}, ("t",), "refused"),
        ({"state": "draining"}, ("t",), "draining"),
    ],
)
def test_teacher_states(fields: dict[str, str], assigned: tuple[str, ...], state: str) -> None:
    document = document_of(mesh(teacher("t", **fields), assigned=assigned))
    assert document["teachers"][f"{S} t"]["state"] == state


def test_a_teacher_that_left_while_no_page_was_open_is_not_shown_as_lost() -> None:
    latest = LatestDocument()
    latest.update(mesh(teacher("t")), [], 1.0)
    changes = latest.update(mesh(), [event("lost", "t")], 1.0 + DEPARTED_S)
    assert changes["teachers"] == {f"{S} t": None}
    assert latest.document["teachers"] == {}


def test_rows_name_hosts_of_foreign_servers_and_teachers_that_students_complain_of() -> None:
    foreign = teacher("t", address="http://node:1", protocol="oip", voucher="node:2")
    status = mesh(foreign, teacher("u"), teacher("v", host="rack-7"))
    status.services[0].students[0].report.MergeFrom(
        pb.StudentReport(
            stragglers=["u", "t"], ejected=["w", "v"], ejected_for=["lied", "silent"], hedges=3,
            disputed=["u", "t"],
        )
    )  # fmt: skip
    document = document_of(status)
    shown, plain, hosted = document["teachers"].values()
    assert (shown["protocol"], shown["voucher"], shown["host"]) == ("oip", "node:2", "node")
    assert (plain["host"], hosted["host"]) == ("node", "rack-7")
    row = document["students"][f"{S} job/0"]
    assert (row["slow"], row["hedges"], row["disputed"]) == (["t", "u"], 3, ["t", "u"])
    assert row["ejected"] == [["v", "silent"], ["w", "lied"]]


def test_a_lease_that_was_not_prolonged_is_no_change() -> None:
    before = mesh(teacher("t", lease_remaining_s=5.0))
    later = mesh(teacher("t", lease_remaining_s=3.0))
    later.redis_time_ms += 2000
    assert "teachers" not in difference(document_of(before), document_of(later))


def test_a_lost_teacher_fades_and_then_goes_or_comes_back() -> None:
    latest = LatestDocument()
    latest.update(mesh(teacher("t", samples_per_second=5)), [], 0.0)
    changes = latest.update(mesh(), [event("lost", "t")], 1.0)
    assert changes["teachers"][f"{S} t"] == {"state": "lost", "rate": 0.0}
    assert latest.update(mesh(), [], DEPARTED_S) == {}
    assert latest.update(mesh(), [], 1.0 + DEPARTED_S)["teachers"] == {f"{S} t": None}
    for now, shown in ((20.0, (teacher("t"),)), (21.0, ()), (22.0, (teacher("t"),)), (31.0, ())):
        latest.update(mesh(*shown), [event("lost", "t")] if now == 21.0 else [], now)
        assert not shown or latest.document["teachers"][f"{S} t"]["state"] == "idle"
    assert f"{S} t" in latest.document["teachers"], "it has gone anew"


@pytest.mark.parametrize(
    ("last_state", "kind", "shown"),
    [("serving", "left", "left"), ("draining", "", "left"), ("draining", "lost", "lost")],
)
def test_the_log_says_how_a_teacher_went(last_state: str, kind: str, shown: str) -> None:
    latest = LatestDocument()
    latest.update(mesh(teacher("t", state=last_state)), [], 0.0)
    latest.update(mesh(), [], 1.0)
    latest.update(mesh(), [event(kind, "t")] if kind else [], 1.5)
    assert latest.document["teachers"][f"{S} t"]["state"] == shown


def test_the_log_is_believed_before_an_older_status() -> None:
    latest = LatestDocument()
    status = mesh(teacher("t"))
    latest.update(status, [], 0.0)
    lost = event("lost", "t")
    lost.time_ms = status.redis_time_ms + 1
    latest.update(status, [lost], 0.5)
    assert latest.document["teachers"][f"{S} t"]["state"] == "lost"
    status.redis_time_ms += 2  # it is there again
    latest.update(status, [], 1.0)
    assert latest.document["teachers"][f"{S} t"]["state"] == "idle"


def laid(document: Document, changes: Document) -> Document:
    """What the page does with changes (mesh.js)."""
    result = copy.deepcopy(document)
    for table, rows in changes.items():
        for key, row in rows.items():
            if row is None:
                del result[table][key]
            else:
                result[table].setdefault(key, {}).update(row)
    return result


def test_changes_laid_over_a_document_give_the_next_one() -> None:
    script = ScriptedMesh(60, 4, services=2)
    latest = LatestDocument()
    latest.update(script.status(), [], 0.0)
    for step in range(1, 30):
        before = copy.deepcopy(latest.document)
        if step % 5 == 0:
            script.kill("resnet101", list(script.teachers["resnet101"])[-1])
        status = script.status()
        changes = latest.update(status, [], float(step))
        assert laid(before, changes) == latest.document
        assert latest.update(status, [], float(step)) == {}

"""`edl service list` and `show`: all that an upgrade needs to be followed."""

from __future__ import annotations

import json

from rich.console import Console, RenderableType

from edl.coordinator.ops import service_view
from edl.proto import coordinator_pb2 as pb


def service(**fields: object) -> pb.ServiceStatus:
    known: dict[str, object] = {
        "name": "resnet",
        "leader": "10.0.0.1:7000",
        "term": 17,
        "counter": 4,
        "teacher_count": 5,
        "teacher_states": {"serving": 4, "draining": 1},
        "student_count": 3,
        "student_states": {"steady": 3},
        "wanted": 6,
        "assigned": 4,
        "samples_per_second": 1234.5,
        "content_id": "C1",
        "content_teachers": {"C1": 3, "C2": 2},
        "content_students": {"C1": 2, "C2": 1},
    }
    return pb.ServiceStatus(**{**known, **fields})  # type: ignore[arg-type]


def shown(what: RenderableType) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


def test_the_table_has_a_line_for_each_service() -> None:
    text = shown(service_view.table([service(), service(name="bert", leader="")]))
    lines = text.splitlines()
    assert len(lines) == 3
    assert "resnet" in lines[1]
    assert "5 (1 draining, 4 serving)" in lines[1]
    assert "4/6" in lines[1]
    assert "1,234" in lines[1]
    assert "bert" in lines[2]
    assert "none" in lines[2]


def test_the_details_tell_how_far_an_upgrade_is() -> None:
    text = shown(service_view.details(service(next_content_id="C2", upgrade_at="epoch")))
    assert "to C2, each at its next epoch: 2 students still to move" in text
    assert "3 teachers, 2 students" in text
    assert "2 teachers, 1 students" in text
    assert "at once" in shown(service_view.details(service(next_content_id="C2", upgrade_at="now")))


def test_a_service_without_a_leader_says_so() -> None:
    assert "no manager computes" in shown(service_view.details(service(leader="")))


def test_how_many_teachers_are_desired_is_said_or_that_nobody_said_it() -> None:
    assert "no manager has said so" in shown(service_view.details(service()))
    assert service_view.to_json(service())["desired_teachers"] is None
    none = service(desired_teachers=0, desired_reason="no student for 120 s")
    assert "0 teachers: no student for 120 s" in shown(service_view.details(none))
    assert service_view.to_json(none)["desired_teachers"] == 0


def test_json_is_the_summary_without_members() -> None:
    document = json.loads(json.dumps(service_view.to_json(service())))
    assert document["content_teachers"] == {"C1": 3, "C2": 2}
    assert document["leader"] == "10.0.0.1:7000"
    assert "teachers" not in document

"""`edl events`: a line says time, service, kind, subject and cause; JSON has every field."""

from __future__ import annotations

import json

import pytest

from edl.coordinator.ops.event_lines import to_json, to_text
from edl.proto import coordinator_pb2 as pb

KINDS = (
    *("registered", "left", "lost", "draining", "refused", "subscribed", "gone", "assigned"),
    *("starved", "steady", "leader", "upgrade", "recovery"),
)


def event(kind: str = "lost", **fields: object) -> pb.Event:
    return pb.Event(
        service="resnet",
        id="1-0",
        time_ms=1_700_000_000_123,
        kind=kind,
        subject="p4-3",
        text="its lease ran out 0.04 s ago",
        **fields,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_says_when_where_what_who_and_why(kind: str) -> None:
    line = to_text(event(kind))
    assert ".123 resnet " in line.plain
    assert f" {kind} " in line.plain
    assert line.plain.endswith("p4-3  its lease ran out 0.04 s ago")
    assert any(kind in line.plain[span.start : span.end] for span in line.spans)


def test_columns_stand_under_each_other() -> None:
    begins = {to_text(event(kind)).plain.index("p4-3") for kind in KINDS}
    assert len(begins) == 1


def test_an_assignment_shows_who_came_and_who_went() -> None:
    line = to_text(event("assigned", before=["a", "b"], after=["b", "c"])).plain
    assert line.endswith("[+c -a]")
    assert "[" not in to_text(event("assigned", before=["a"], after=["a"])).plain


def test_json_has_every_field() -> None:
    document = json.loads(to_json(event("assigned", after=["a"])))
    assert set(document) == {field.name for field in pb.Event.DESCRIPTOR.fields}
    assert document["after"] == ["a"]
    assert document["before"] == []

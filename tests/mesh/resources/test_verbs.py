"""The verbs `get`, `describe`, `scale`, `drain`, `delete` and `apply` on a mesh."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edl.cli import command_line
from edl.coordinator.machines import Deployment, MachineBoard
from edl.coordinator.machines.schema import Report
from edl.coordinator.operations import deploy
from edl.mesh.up import mesh_run
from edl.proto import coordinator_pb2 as pb
from edl.tests import cli_output
from edl.tests.coordinator.scripted_manager import Served, served
from edl.tests.stores import FaultyStore

CONTENT = "c1" * 32
SERVICE = f"""kind: service
name: resnet
model: s3://models/resnet
content: {CONTENT}
min: 1
max: 4
priority: 2
price: 0.5
freeze: 1 min
options: [micro-batch=8, preprocess=imagenet]
"""
MESH = "kind: mesh\nservices: {a: {model: 'm:f'}}\n"


class Operator:
    """Runs commands against a mesh."""

    def __init__(self, mesh: Served) -> None:
        self.mesh = mesh
        self.board = MachineBoard(FaultyStore.shared(mesh.url))

    def __call__(self, verb: str, *words: object) -> str:
        return cli_output.output_of(*self._command(verb, *words))

    def json(self, *words: object) -> Any:
        return cli_output.json_of(*self._command("get", *words))

    def refusal(self, verb: str, *words: object) -> str:
        return cli_output.refusal_of(*self._command(verb, *words))

    def _command(self, verb: str, *words: object) -> tuple[Any, ...]:
        return command_line(verb), verb, *words, "--redis", self.mesh.url

    @property
    def deployment(self) -> Deployment:
        (found,) = self.board.deployments()
        return found


@pytest.fixture
def edl() -> Iterator[Operator]:
    with served() as mesh:
        for name in ("digits", "reviews"):
            service = mesh.manager.mesh.services.add(name=name, leader="m:1", content_id=CONTENT)
            service.teachers.add(teacher_id=f"t-{name}", address="h:1", state="serving")
            report = pb.StudentReport(service=name, student_id=f"{name}/0", want=2)
            service.students.add(report=report, assigned=[f"t-{name}"])
        operator = Operator(mesh)
        operator.board.join(
            "machine-1", 1, Report(host="host-1", devices=("gpu:0",), state="idle"), 60.0
        )
        yield operator


@pytest.mark.parametrize("kind", ["teacher", "student"])
def test_members_are_shown_with_their_service(edl: Operator, kind: str) -> None:
    one, other = ("t-digits", "t-reviews") if kind == "teacher" else ("digits/0", "reviews/0")
    listed = edl.json(f"{kind}s")[f"{kind}s"]
    assert [member["service"] for member in listed] == ["digits", "reviews"]
    table = edl("get", f"{kind}s")
    assert one in table
    assert other in table
    (found,) = edl.json(kind, one)[f"{kind}s"]
    assert found[f"{kind}_id"] == one
    assert other not in edl("get", kind, one)
    described = edl("describe", kind, one)
    assert one in described
    assert "digits" in described
    assert f"did you mean {one}?" in edl.refusal("describe", kind, one + "x")


def test_a_service_is_deployed_changed_scaled_and_deleted(
    edl: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "resnet.yaml"
    file.write_text(SERVICE)
    assert "1 to 4 teachers of s3://models/resnet" in edl("apply", "-f", file, "--dry-run")
    assert edl.board.deployments() == []
    edl("apply", "-f", file)
    expected = Deployment(
        "resnet", "s3://models/resnet", CONTENT,
        (("micro-batch", "8"), ("preprocess", "imagenet")), 1, 4, 2, 0.5, 60.0,
        since_ms=edl.deployment.since_ms,
    )  # fmt: skip
    assert edl.deployment == expected
    assert "s3://models/resnet" in edl("get", "services")
    assert edl.json("service", "resnet")["deployments"][0]["model_url"] == "s3://models/resnet"
    assert edl.json("service", "digits")["deployments"] == []
    deployments = MachineBoard.deployments

    def overtaken(board: MachineBoard) -> list[Deployment]:
        """Another user applies the service with another priority, once."""
        found = deployments(board)
        monkeypatch.undo()
        deploy(board, replace(expected, priority=7))
        return found

    monkeypatch.setattr(MachineBoard, "deployments", overtaken)
    for size, bounds in (("3", (3, 3)), ("0:9", (0, 9))):
        edl("scale", "service", "resnet", size)
        scaled = edl.deployment
        assert (scaled.min, scaled.max) == bounds
        assert (scaled.options, scaled.freeze_s, scaled.priority) == (expected.options, 60.0, 7)
    assert "N or MIN:MAX" in edl.refusal("scale", "service", "resnet", "many")
    assert "not deployed on machines" in edl.refusal("scale", "service", "digits", "2")
    assert "--wait is for jobs" in edl.refusal("delete", "service", "resnet", "--wait", 3)
    edl("delete", "service", "resnet")
    assert edl.board.deployments() == [] or edl.deployment.withdrawn


def test_a_mesh_is_applied_as_edl_up_starts_it(edl: Operator, tmp_path: Path) -> None:
    file = tmp_path / "mesh.yaml"
    file.write_text(MESH.replace("}}", ", teachers: 2}}"))
    shown = edl("apply", "-f", file, "--dry-run")
    assert shown == cli_output.output_of(command_line("up"), "up", file, "--dry-run")
    assert shown.count("edl teacher serve") == 2


def test_a_mesh_that_has_ended_is_followed_by_the_next_document(
    edl: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh, service = tmp_path / "mesh.yaml", tmp_path / "service.yaml"
    mesh.write_text("kind: mesh\nstudents: {quick: {command: 'true'}}\n")
    service.write_text(SERVICE)
    codes = [1, 0]  # of 'edl up', which ends before this process sees that the mesh is up
    monkeypatch.setattr(mesh_run, "run_in_background", lambda *_: codes.pop(0))
    assert cli_output.run(command_line("apply"), "apply", "-f", mesh).exit_code == 1
    edl("apply", "-f", mesh, "-f", service)
    assert edl.deployment.service == "resnet"


def test_machines_are_shown_and_drained(edl: Operator) -> None:
    (machine,) = edl.json("machines")["machines"]
    assert (machine["machine"], machine["devices"]) == ("machine-1", ["gpu:0"])
    assert "machine-1" in edl("get", "machines")
    assert "host-1" in edl("describe", "machine", "machine-1")
    assert "did you mean machine-1?" in edl.refusal("get", "machine", "machine-2")
    facts = {"incarnation": "1", "host": "host-1", "address": "host-1:1"}
    edl.mesh.registry.register("teachers", "digits", "t1", facts, 60.0)
    assert edl("drain", "machine", "host-1") == "draining digits/t1\n"


def test_a_verb_that_a_kind_does_not_have_names_another(edl: Operator) -> None:
    assert "'edl drain teacher NAME'" in edl.refusal("delete", "teacher", "t")
    assert "'edl delete job NAME'" in edl.refusal("drain", "job", "a")
    assert "there is no kind 'tea'; there are: teacher, " in edl.refusal("get", "tea")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: a\n", r":1: 'kind' is missing: expects `kind: mesh`, `kind: service` or `kind"),
        ("kind: pod\n", ":1: kind: expects 'mesh', 'service' or 'job', got 'pod'"),
        (SERVICE + "maximum: 3\n", "unknown key; did you mean 'max'?"),
        (SERVICE.replace("max: 4", "max: 0"), "at least `min` and at most `max`, not 1 to 0"),
        (SERVICE.replace(CONTENT, "c1"), ":1: the content of a model must be 64 hexadecimal"),
        (f"{SERVICE}---\n{MESH}", "the only document of its file"),
        (f"{SERVICE}---\n{SERVICE}x: 1\n", ":22: x: unknown key"),
        (MESH.replace("m:f", "no.onnx"), "services.a.model: there is no "),
    ],
)
def test_nothing_is_applied_if_a_file_has_a_mistake(
    edl: Operator, tmp_path: Path, text: str, says: str
) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(SERVICE)
    bad.write_text(text)
    assert says in edl.refusal("apply", "-f", good, "-f", bad)
    assert edl.board.deployments() == []

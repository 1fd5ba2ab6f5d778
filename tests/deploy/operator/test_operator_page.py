"""docs/operator.md and the example say what is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer.main
import yaml

from edl.commands import app
from edl.deploy.operator.metrics import OperatorMetrics
from edl.mesh.kubernetes.resources import DEPLOYMENT, TEACHER_SERVICE, Object
from edl.tests.deploy.kube_api.cluster import Cluster, definitions
from edl.tests.deploy.operator.teaching import Operator, Said, conditions

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "operator.md").read_text()


def _of_the_page() -> Object:
    return _resource(re.search(r"```yaml\n(apiVersion: edl.*?)```", PAGE, re.S)[1])  # type: ignore[index]


def _resource(text: str) -> Object:
    found: Object = yaml.safe_load(text)
    assert (found["apiVersion"], found["kind"]) == ("edl-dist.io/v1alpha1", "TeacherService")
    return found


@pytest.mark.parametrize("which", ["page", "example"])
def test_the_examples_become_teachers(cluster: Cluster, which: str) -> None:
    example = (ROOT / "deploy" / "kubernetes" / "examples" / "teacherservice.yaml").read_text()
    resource = _of_the_page() if which == "page" else _resource(example)
    name = resource["metadata"]["name"]
    known = definitions()[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert set(resource["spec"]) <= set(known["properties"]["spec"]["properties"])
    cluster.create(TEACHER_SERVICE, name, resource["spec"])
    cluster.node("m1", cpu="8", memory="64Gi")
    operator = Operator(cluster, Said(**{name: 1}))
    operator.turn()
    assert "InvalidSpec" not in conditions(operator.service(name))
    made = cluster.client.get(DEPLOYMENT, name)
    kubernetes_validate.validate(made, "1.30", strict=True)
    pod = made["spec"]["template"]["spec"]
    mounted = [one["name"] for one in pod["containers"][0]["volumeMounts"]]
    assert set(mounted) <= {one["name"] for one in pod["volumes"]}
    assert "models" in mounted


#: Where reasons and events are named, and which of the capitalised words there are not ours.
WORDS = {
    "deploy/operator/teachers/telling.py": {"ReplicaFailure", "ProgressDeadlineExceeded"},
    "deploy/operator/jobs/act.py": set(),
    "scheduler/job_pods/noting.py": set(),
    "scheduler/job_pods/ordering.py": set(),
}


@pytest.mark.parametrize("file", WORDS)
def test_the_page_has_every_reason_and_event(file: str) -> None:
    found = set(re.findall(r'"([A-Z][a-z]+[A-Za-z]*)"', (ROOT / file).read_text()))
    assert found
    for word in found - WORDS[file] - {"Normal", "Warning", "True"}:
        assert f"`{word}`" in PAGE, word


@pytest.mark.parametrize("definition", definitions(), ids=lambda one: one["metadata"]["name"])
def test_the_page_has_every_field(definition: Object) -> None:
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    services, jobs = PAGE.split("\n## A DistillJob\n")
    page = services if definition["spec"]["names"]["kind"] == "TeacherService" else jobs
    for word in schema["spec"]["properties"]:
        assert re.search(rf"`{word}`|^  {word}:", page, re.M), word


def test_the_page_has_every_option_and_metric() -> None:
    group: Any = typer.main.get_command(app)
    run = group.commands["operator"].commands["run"]
    options = {name for one in run.params for name in one.opts if name.startswith("--")}
    metrics = {
        sample.name
        for metric in OperatorMetrics().registry.collect()
        for sample in metric.samples
        if not sample.name.endswith("_created")
    } | {"edl_operator_turns_total", "edl_operator_turn_seconds"}
    for word in (options - {"--verbose", "--leader-elect"}) | metrics | {"--no-leader-elect"}:
        assert f"`{word}`" in PAGE, word

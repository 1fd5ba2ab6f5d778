"""Every document that `deploy/kubernetes/` makes is one that a cluster takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from unittest import mock

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import utils

from edl.tests.deploy.kubernetes import (
    BUILDS,
    COMPONENTS,
    OVERLAYS,
    ROOT,
    Object,
    build,
    compose,
    of_kind,
    pods,
)

pytestmark = pytest.mark.system

#: Of which the package has schemas; the oldest and the newest in each run, all of them nightly.
VERSIONS = sorted(
    {one for one in utils.all_versions() if tuple(map(int, one.split("."))) >= (1, 30, 0)}
)
SCHEMAS = Path(__file__).with_name("schemas")
FOREIGN = {one.stem: yaml.safe_load(one.read_text()) for one in SCHEMAS.glob("*.yaml")}


@pytest.fixture(scope="module", autouse=True)
def _read_once() -> Iterator[None]:
    """The package reads more than a megabyte of definitions for each document otherwise."""
    with mock.patch.object(utils, "schema_contents", cache(utils.schema_contents)):
        yield


@cache
def everything() -> tuple[Object, ...]:
    """Each different document of all builds, once."""
    found = {json.dumps(one, sort_keys=True): one for name in BUILDS for one in build(name)}
    return tuple(found.values())


def name_of(one: Object) -> str:
    return f"{one['kind']} {one['metadata']['name']}"


@pytest.mark.parametrize(
    "version",
    [VERSIONS[0], *(pytest.param(one, marks=pytest.mark.nightly) for one in VERSIONS[1:-1]),
     VERSIONS[-1]],
)  # fmt: skip
def test_each_document_is_valid(version: str) -> None:
    held = 0
    for one in everything():
        if one["kind"].lower() in FOREIGN:
            continue
        try:
            kubernetes_validate.validate(one, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            place = ".".join(map(str, error.path))
            pytest.fail(f"{name_of(one)} in {version}: {place}: {error.message}")
        held += 1
    assert held > 40


def test_the_kinds_of_others_are_as_we_know_them() -> None:
    seen = set()
    for one in everything():
        if (schema := FOREIGN.get(one["kind"].lower())) is not None:
            jsonschema.validate(one, schema, jsonschema.Draft202012Validator)
            seen.add(one["kind"].lower())
    assert seen == set(FOREIGN)


def test_what_stands_inside_the_kinds_of_others_is_valid_too() -> None:
    for pod in pods(everything()):
        body = {"metadata": {"name": "a", "labels": dict(pod.labels)}, "spec": pod.spec}
        whole = {"apiVersion": "v1", "kind": "Pod", **body}
        kubernetes_validate.validate(whole, VERSIONS[0], strict=True)
    for scaled in of_kind(everything(), "ScaledObject"):
        behavior = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        spec = {"scaleTargetRef": {"kind": "Deployment", "name": "a"}, "maxReplicas": 1}
        autoscaler = {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "a"},
            "spec": {**spec, "behavior": behavior},
        }
        kubernetes_validate.validate(autoscaler, VERSIONS[0], strict=True)


def test_a_wrong_document_is_found() -> None:
    """The checks above can fail: a field of no kind, a word for a number, a typo in a CR."""
    deployment = next(one for one in everything() if one["kind"] == "Deployment")
    for spec in ({**deployment["spec"], "replicaz": 1}, {**deployment["spec"], "replicas": "two"}):
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate({**deployment, "spec": spec}, VERSIONS[0], strict=True)
    scaled = next(one for one in everything() if one["kind"] == "ScaledObject")
    wrong = {**scaled, "spec": {**scaled["spec"], "maxReplicas": 3}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, FOREIGN["scaledobject"], jsonschema.Draft202012Validator)


@pytest.mark.parametrize("component", COMPONENTS)
def test_each_component_is_built_with_the_base_alone(component: str) -> None:
    """Who lacks a CRD leaves its component out, so none needs another one."""
    made = compose((component,))
    assert {one["metadata"].get("namespace", "edl-dist") for one in made} == {"edl-dist"}
    names = [(one["kind"], one["metadata"]["name"]) for one in made]
    assert len(names) == len({*names})


def test_kinds_that_a_cluster_may_lack_are_in_components_alone() -> None:
    for name in ("base", *OVERLAYS):
        assert not {one["kind"].lower() for one in build(name)} & set(FOREIGN)


def test_the_dashboard_and_the_alerts_are_the_files_themselves() -> None:
    maps = {one["metadata"]["name"]: one for one in of_kind(build("whole"), "ConfigMap")}
    grafana = ROOT / "deploy" / "grafana"
    dashboard = maps["edl-dashboard"]
    assert dashboard["data"]["edl-dist.json"] == (grafana / "dashboard.json").read_text()
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    (rule,) = of_kind(build("whole"), "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((grafana / "alerts.yml").read_text())

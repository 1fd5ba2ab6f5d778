"""What a manifest of `deploy/kubernetes/` names is there: pods, ports, Secrets, ConfigMaps, ..."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import utils

from edl.coordinator.metrics import CoordinatorMetrics
from edl.tests.coordinator.test_metrics import VIEW
from edl.tests.deploy.kubernetes import (
    BUILDS,
    COMPONENTS,
    KUBERNETES,
    NAMESPACE,
    OVERLAYS,
    ROOT,
    Object,
    Pod,
    build,
    compose,
    named,
    of_kind,
    pods,
    printed_secrets,
    selects,
)

pytestmark = pytest.mark.system

#: Keys of what cert-manager writes.
CERTIFICATE_KEYS = {"ca.crt", "tls.crt", "tls.key"}

builds = pytest.mark.parametrize("name", BUILDS)


def taken(selector: Object, objects: Iterable[Object]) -> list[Pod]:
    return [pod for pod in pods(objects) if selects(selector, pod.labels)]


@builds
def test_selectors_find_pods(name: str) -> None:
    objects = build(name)
    for one in of_kind(objects, "Deployment", "StatefulSet"):
        assert selects(one["spec"]["selector"], one["spec"]["template"]["metadata"]["labels"])
        found = {pod.owner for pod in taken(one["spec"]["selector"], objects)}
        assert found == {f"{one['kind']} {one['metadata']['name']}"}, "others' pods are selected"
    for one in of_kind(objects, "PodDisruptionBudget"):
        assert taken(one["spec"]["selector"], objects), one
    for one in of_kind(build("whole"), "PodMonitor"):  # of the operator's, where there is one
        assert taken(one["spec"]["selector"], build("whole")), one
    for one in of_kind(objects, "Service"):
        assert taken({"matchLabels": one["spec"]["selector"]}, objects), one
    for one in of_kind(objects, "ServiceMonitor"):
        services = [
            service
            for service in of_kind(objects, "Service")
            if selects(one["spec"]["selector"], service["metadata"].get("labels", {}))
        ]
        assert len(services) == 1, "a manager would be read twice, or not at all"
        ports = {port["name"] for port in services[0]["spec"]["ports"]}
        assert {end["port"] for end in one["spec"]["endpoints"]} <= ports
    for pod in pods(objects):
        for spread in pod.spec.get("topologySpreadConstraints", ()):
            assert selects(spread["labelSelector"], pod.labels), pod.owner


@builds
def test_ports_have_names_that_containers_give(name: str) -> None:
    objects = build(name)
    for service in of_kind(objects, "Service"):
        for pod in taken({"matchLabels": service["spec"]["selector"]}, objects):
            for port in service["spec"]["ports"]:
                assert pod.port(port["targetPort"]) == port["port"], (service, pod.owner)
    for monitor in of_kind(objects, "PodMonitor"):
        for pod in taken(monitor["spec"]["selector"], objects):
            for end in monitor["spec"]["podMetricsEndpoints"]:
                assert pod.port(end["port"]), pod.owner
    for pod in pods(objects):
        for container in pod.containers:
            own = {port["name"] for port in container.get("ports", ())}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                asked = container.get(probe, {})
                for how in ("httpGet", "tcpSocket", "grpc"):
                    if how in asked:
                        assert asked[how]["port"] in own, (pod.owner, probe)


@builds
def test_scaled_objects_exist_and_have_no_fixed_replicas(name: str) -> None:
    objects = build(name)
    for scaler in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject"):
        target = scaler["spec"]["scaleTargetRef"]
        found = named(objects, target.get("kind", "Deployment"), target["name"])
        assert "replicas" not in found["spec"]
    for claim in of_kind(objects, "StatefulSet"):
        service = named(objects, "Service", claim["spec"]["serviceName"])
        assert service["spec"]["clusterIP"] == "None"
    for binding in of_kind(objects, "RoleBinding", "ClusterRoleBinding"):
        named(objects, binding["roleRef"]["kind"], binding["roleRef"]["name"])
        for subject in binding["subjects"]:
            assert subject["namespace"] == NAMESPACE
            named(objects, subject["kind"], subject["name"])
    issuers = {one["metadata"]["name"] for one in of_kind(objects, "Issuer")}
    secrets = {one["spec"]["secretName"] for one in of_kind(objects, "Certificate")}
    for certificate in of_kind(objects, "Certificate"):
        assert certificate["spec"]["issuerRef"]["name"] in issuers
    for issuer in of_kind(objects, "Issuer"):
        assert issuer["spec"].get("ca", {"secretName": "edl-ca"})["secretName"] in secrets


@pytest.fixture(scope="module")
def printed() -> dict[str, set[str]]:
    """Keys of each Secret that `secrets.sh ctr` prints."""
    return {name: {*data} for name, data in printed_secrets("ctr").items()}


@builds
def test_mounted_objects_exist(name: str, printed: dict[str, set[str]]) -> None:
    objects = build(name)
    certificates = of_kind(objects, "Certificate")
    secrets = printed | {one["spec"]["secretName"]: CERTIFICATE_KEYS for one in certificates}
    maps = {one["metadata"]["name"]: {*one["data"]} for one in of_kind(objects, "ConfigMap")}
    claims = {one["metadata"]["name"] for one in of_kind(objects, "PersistentVolumeClaim")}
    accounts = {one["metadata"]["name"] for one in of_kind(objects, "ServiceAccount")}
    classes = {one["metadata"]["name"] for one in of_kind(objects, "PriorityClass")}
    # For less than -10, cluster-autoscaler's default, no machine is started.
    assert all(-10 <= one["value"] < 0 for one in of_kind(objects, "PriorityClass"))
    used = set()
    for pod in pods(objects):
        assert pod.spec["serviceAccountName"] in accounts, pod.owner
        assert pod.spec.get("priorityClassName") in {None, *classes}, pod.owner
        for volume in pod.spec["volumes"]:
            for kind, key, known in (
                ("secret", "secretName", secrets),
                ("configMap", "name", maps),
            ):
                if kind in volume:
                    keys = known[volume[kind][key]]
                    wanted = {item["key"] for item in volume[kind].get("items", ())}
                    assert wanted <= keys, (pod.owner, volume)
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims, pod.owner
            used.add((volume.get("configMap") or {}).get("name"))
        for container in pod.containers:
            for one in container.get("env", ()):
                if source := one.get("valueFrom", {}).get("configMapKeyRef"):
                    assert source["key"] in maps[source["name"]], pod.owner
                    used.add(source["name"])
        volumes = {one["name"] for one in pod.spec["volumes"]}
        assert {mount["name"] for one in pod.containers for mount in one["volumeMounts"]} == volumes
    unused = {one for one in maps if one not in used and not one.startswith("edl-examples-")}
    assert unused <= {"edl-dashboard"}, "nothing reads these"


def test_monitors_keep_our_labels() -> None:
    """Of a Service, Prometheus notes its name as `service`, which is a label of ours."""
    (monitor,) = of_kind(build("whole"), "ServiceMonitor")
    for endpoint in monitor["spec"]["endpoints"]:
        assert {"action": "labeldrop", "regex": "service"} in endpoint["relabelings"]
    (scaler,) = of_kind(build("elsewhere"), "HorizontalPodAutoscaler")
    metric = scaler["spec"]["metrics"][0]["external"]["metric"]
    assert metric["selector"] == {"matchLabels": {"service": "ctr"}}
    metrics = CoordinatorMetrics()
    metrics.watch(lambda: VIEW)
    shown = [
        sample.labels
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == metric["name"]
    ]
    assert shown
    assert all(set(labels) == {"service"} for labels in shown)


def test_the_overlay_of_the_page_builds() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    block = re.search(r"```yaml\n# kustomization.yaml\n(.*?)```", page, re.DOTALL)
    assert block
    overlay = yaml.safe_load(block[1])
    prefix = "edl-dist/deploy/kubernetes/"
    for one in (*overlay["resources"], *overlay["components"]):
        assert (KUBERNETES / one.removeprefix(prefix) / "kustomization.yaml").is_file(), one
    made = compose(tuple(Path(one).name for one in overlay["components"]))
    secrets = [
        volume["secret"]["secretName"]
        for pod in pods(made)
        for volume in pod.spec["volumes"]
        if "secret" in volume
    ]
    assert "edl-operator-tls" in secrets, "cert-manager comes after all that have pods"
    assert "edl-student-ctr-tls" in secrets


def test_what_the_scaler_asks_is_the_coordinator() -> None:
    whole = build("whole")
    url = named(whole, "ScaledObject", "edl-teacher-ctr")["spec"]["triggers"][0]["metadata"]["url"]
    service = named(whole, "Service", "edl-coordinator")
    ports = {one["port"]: one["name"] for one in service["spec"]["ports"]}
    found = re.fullmatch(r"http://edl-coordinator\.edl-dist\.svc:(\d+)/autoscale/ctr", url)
    assert found
    assert ports[int(found[1])] == "metrics"


#: Of which the package has schemas; the oldest and the newest in each run, all of them nightly.
VERSIONS = sorted(
    {one for one in utils.all_versions() if tuple(map(int, one.split("."))) >= (1, 30, 0)}
)
FOREIGN: dict[str, Object] = yaml.safe_load(
    Path(__file__).with_name("foreign_kinds.yaml").read_text()
)
SIMPLE: dict[str, Object] = {
    "any": {},
    "bool": {"type": "boolean"},
    "natural": {"type": "integer", "minimum": 0},
    "positive": {"type": "integer", "minimum": 1},
    "string": {"type": "string"},
    "strings": {"type": "object", "additionalProperties": {"type": "string"}},
}


def json_schema(said: Any) -> Object:
    """The JSON schema of what `foreign_kinds.yaml` says of a value."""
    if isinstance(said, dict):
        fields = {name.rstrip("!"): json_schema(value) for name, value in said.items()}
        required = [name.rstrip("!") for name in said if name.endswith("!")]
        known = {"properties": fields, "additionalProperties": False}
        return {"type": "object", "required": required, **known}
    if isinstance(said, list) and len(said) > 1:
        return {"enum": said}
    if isinstance(said, list):
        return {"type": "array", "minItems": 1, "items": json_schema(said[0])}
    if said in SIMPLE:
        return SIMPLE[said]
    return {"type": "string", "pattern": said[1:-1].replace("\\/", "/")}


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
        if one["kind"] in FOREIGN:
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
        if (known := FOREIGN.get(one["kind"])) is not None:
            assert one.keys() == {"apiVersion", "kind", "metadata", "spec"}
            assert one["apiVersion"] == known["api"], name_of(one)
            jsonschema.validate(one["spec"], json_schema(known["spec"]))
            seen.add(one["kind"])
    assert seen == set(FOREIGN)
    for job in of_kind(everything(), "PaddleJob"):
        worker = job["spec"]["paddleReplicaSpecs"]["Worker"]["template"]["spec"]
        assert "paddle" in {one["name"] for one in worker["containers"]}, "Kubeflow asks for it"


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


@pytest.mark.parametrize("component", COMPONENTS)
def test_each_component_is_built_with_the_base_alone(component: str) -> None:
    """Who lacks a CRD leaves its component out, so none needs another one."""
    made = compose((component,))
    assert {one["metadata"].get("namespace", "edl-dist") for one in made} == {"edl-dist"}
    names = [(one["kind"], one["metadata"]["name"]) for one in made]
    assert len(names) == len({*names})


def test_kinds_that_a_cluster_may_lack_are_in_components_alone() -> None:
    for name in ("base", *OVERLAYS):
        assert not {one["kind"] for one in build(name)} & set(FOREIGN)


def test_the_dashboard_and_the_alerts_are_the_files_themselves() -> None:
    grafana = ROOT / "deploy" / "grafana"
    dashboard = named(build("whole"), "ConfigMap", "edl-dashboard")
    assert dashboard["data"]["edl-dist.json"] == (grafana / "dashboard.json").read_text()
    (rule,) = of_kind(build("whole"), "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((grafana / "alerts.yml").read_text())

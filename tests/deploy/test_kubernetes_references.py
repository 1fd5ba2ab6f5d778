"""What a manifest of `deploy/kubernetes/` names is there: pods, ports, Secrets, ConfigMaps, ..."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
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
def test_policies_select_existing_pods(name: str) -> None:
    """Each selector of a policy takes pods of this build, or of one that has more components."""
    everywhere = [pod.labels for build_ in BUILDS for pod in pods(build(build_))]
    for policy in of_kind(build(name), "NetworkPolicy"):
        spec = policy["spec"]
        selectors = [spec["podSelector"]]
        for rule in (*spec.get("ingress", ()), *spec.get("egress", ())):
            peers = (*rule.get("from", ()), *rule.get("to", ()))
            selectors += [
                one["podSelector"]
                for one in peers
                if "namespaceSelector" not in one and "podSelector" in one
            ]
        for selector in selectors:
            assert any(selects(selector, labels) for labels in everywhere), selector
            for one in selector.get("matchExpressions", ()):
                known = {labels.get(one["key"]) for labels in everywhere}
                assert {*one["values"]} <= known, f"{policy['metadata']['name']}: {selector}"


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
    for policy in of_kind(objects, "NetworkPolicy"):
        for one in policy["spec"].get("ingress", ()):
            for port in one.get("ports") or ():
                if isinstance(port["port"], str):
                    for pod in taken(policy["spec"]["podSelector"], objects):
                        assert pod.port(port["port"]), (policy["metadata"]["name"], pod.owner)


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


def secrets_of(objects: Iterable[Object], printed: dict[str, set[str]]) -> dict[str, set[str]]:
    """Each Secret that somebody makes, with its keys."""
    made = dict(printed)
    for one in of_kind(objects, "Certificate"):
        made[one["spec"]["secretName"]] = CERTIFICATE_KEYS
    return made


@pytest.fixture(scope="module")
def printed() -> dict[str, set[str]]:
    """The Secrets of `secrets.sh ctr`, as its text makes them; its test runs it."""
    text = (KUBERNETES / "secrets.sh").read_text()
    server = re.search(r"secret edl-redis-server ((?:.|\\\n)*?)\n[a-z]", text)
    users = re.search(r"for user in ([a-z ]+); do\s+secret \"edl-redis-\$user\" password", text)
    assert server
    assert users
    keys = re.findall(r"([a-z.-]+) \"\$work", server[1])
    return {
        "edl-redis-server": {*keys},
        **{f"edl-redis-{user}": {"password"} for user in users[1].split()},
        "edl-redis-teacher-ctr": {"password"},
    }


@builds
def test_mounted_objects_exist(name: str, printed: dict[str, set[str]]) -> None:
    objects = build(name)
    secrets = secrets_of(objects, printed)
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
        for source in references(pod):
            assert source["key"] in maps[source["name"]], pod.owner
            used.add(source["name"])
    unused = {one for one in maps if one not in used and not one.startswith("edl-examples-")}
    assert unused <= {"edl-dashboard"}, "nothing reads these"


def references(pod: Pod) -> Iterator[Object]:
    for container in pod.containers:
        for one in container.get("env", ()):
            if "configMapKeyRef" in one.get("valueFrom", {}):
                yield one["valueFrom"]["configMapKeyRef"]


@builds
def test_each_volume_is_mounted_and_each_mount_is_a_volume(name: str) -> None:
    for pod in pods(build(name)):
        volumes = {one["name"] for one in pod.spec["volumes"]}
        mounted = {mount["name"] for one in pod.containers for mount in one["volumeMounts"]}
        assert mounted == volumes, pod.owner
        for container in pod.containers:
            places = [mount["mountPath"] for mount in container["volumeMounts"]]
            assert len(places) == len({*places}), pod.owner


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

"""What `deploy/kubernetes/` builds is valid, names what is there, and runs what works."""

from __future__ import annotations

import json
import re
import subprocess
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

import edl
from edl.coordinator.metrics import CoordinatorMetrics
from edl.coordinator.store.redis_url import parse
from edl.runtime.metrics import LIVE, READY
from edl.runtime.supervise import start
from edl.tests.coordinator.test_metrics import VIEW
from edl.tests.deploy import command_lines
from edl.tests.deploy.container_file import ContainerFile
from edl.tests.deploy.kubernetes import (
    BUILDS,
    COMPONENT,
    COMPONENTS,
    KUBERNETES,
    NAMESPACE,
    OVERLAYS,
    ROOT,
    Object,
    Pod,
    build,
    compose,
    environment,
    expanded,
    named,
    of_kind,
    pods,
    printed_secrets,
    selects,
)
from edl.tests.runtime.programs import python
from edl.tests.waiting import DEADLINE_S

pytestmark = pytest.mark.system

Objects = tuple[Object, ...]
IMAGE = "edl-dist"
#: Arguments that name a place which the process writes.
WRITTEN = ("--checkpoint",)
#: Keys of what cert-manager writes.
CERTIFICATE_KEYS = {"ca.crt", "tls.crt", "tls.key"}
DRAINING = """
import pathlib, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("ready", flush=True)
signal.sigwait({signal.SIGTERM})
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
"""


@pytest.fixture(scope="module", params=BUILDS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def objects(name: str) -> Objects:
    return build(name)


def taken(selector: Object, objects: Iterable[Object]) -> list[Pod]:
    return [pod for pod in pods(objects) if selects(selector, pod.labels)]


def test_selectors_find_pods(objects: Objects) -> None:
    for one in of_kind(objects, "Deployment", "StatefulSet"):
        assert selects(one["spec"]["selector"], one["spec"]["template"]["metadata"]["labels"])
        found = {pod.owner for pod in taken(one["spec"]["selector"], objects)}
        assert found == {f"{one['kind']} {one['metadata']['name']}"}, "others' pods are selected"
    for one in of_kind(objects, "PodDisruptionBudget"):
        assert taken(one["spec"]["selector"], objects), one
    for one in of_kind(build("whole"), "PodMonitor"):  # of the operator's, where there is one
        assert taken(one["spec"]["selector"], build("whole")), one
    services = of_kind(objects, "Service")
    for one in services:
        assert taken({"matchLabels": one["spec"]["selector"]}, objects), one
    for one in of_kind(objects, "ServiceMonitor"):
        wanted = one["spec"]["selector"]
        read = [it for it in services if selects(wanted, it["metadata"].get("labels", {}))]
        assert len(read) == 1, "a manager would be read twice, or not at all"
        ports = {port["name"] for port in read[0]["spec"]["ports"]}
        assert {end["port"] for end in one["spec"]["endpoints"]} <= ports
    for pod in pods(objects):
        for spread in pod.spec.get("topologySpreadConstraints", ()):
            assert selects(spread["labelSelector"], pod.labels), pod.owner


def test_ports_have_names_that_containers_give(objects: Objects) -> None:
    for service in of_kind(objects, "Service"):
        for pod in taken({"matchLabels": service["spec"]["selector"]}, objects):
            for port in service["spec"]["ports"]:
                assert pod.ports.get(port["targetPort"]) == port["port"], (service, pod.owner)
    for monitor in of_kind(objects, "PodMonitor"):
        for pod in taken(monitor["spec"]["selector"], objects):
            for end in monitor["spec"]["podMetricsEndpoints"]:
                assert pod.ports.get(end["port"]), pod.owner
    for pod in pods(objects):
        for container in pod.containers:
            own = {port["name"] for port in container.get("ports", ())}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                asked = container.get(probe, {})
                for how in ("httpGet", "tcpSocket", "grpc"):
                    if how in asked:
                        assert asked[how]["port"] in own, (pod.owner, probe)


def test_scaled_objects_exist_and_have_no_fixed_replicas(objects: Objects) -> None:
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


def test_mounted_objects_exist(objects: Objects) -> None:
    secrets = {name: {*data} for name, data in printed_secrets("ctr").items()}
    for one in of_kind(objects, "Certificate"):
        secrets[one["spec"]["secretName"]] = CERTIFICATE_KEYS
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
                    wanted = {item["key"] for item in volume[kind].get("items", ())}
                    assert wanted <= known[volume[kind][key]], (pod.owner, volume)
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims, pod.owner
            used.add(volume.get("configMap", {}).get("name"))
        for one in (one for container in pod.containers for one in container.get("env", ())):
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
    metrics.export_view(lambda: VIEW)
    samples = [one for family in metrics.registry.collect() for one in family.samples]
    shown = [set(one.labels) for one in samples if one.name == metric["name"]]
    assert shown
    assert all(labels == {"service"} for labels in shown)


def test_the_overlay_of_the_page_builds() -> None:
    page = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()
    block = re.search(r"```yaml\n# kustomization.yaml\n(.*?)```", page, re.DOTALL)
    assert block
    overlay = yaml.safe_load(block[1])
    prefix = "edl-dist/deploy/kubernetes/"
    for one in (*overlay["resources"], *overlay["components"]):
        assert (KUBERNETES / one.removeprefix(prefix) / "kustomization.yaml").is_file(), one
    made = compose(tuple(Path(one).name for one in overlay["components"]))
    volumes = [volume for pod in pods(made) for volume in pod.spec["volumes"]]
    secrets = {volume["secret"]["secretName"] for volume in volumes if "secret" in volume}
    wanted = {"edl-operator-tls", "edl-student-ctr-tls"}
    assert wanted <= secrets, "cert-manager comes after all that have pods"


def test_what_the_scaler_asks_is_the_coordinator() -> None:
    whole = build("whole")
    url = named(whole, "ScaledObject", "edl-teacher-ctr")["spec"]["triggers"][0]["metadata"]["url"]
    service = named(whole, "Service", "edl-coordinator")
    (port,) = (one["port"] for one in service["spec"]["ports"] if one["name"] == "metrics")
    assert url == f"http://edl-coordinator.edl-dist.svc:{port}/autoscale/ctr"


#: Of which the package has schemas; the oldest and the newest in each run, all of them nightly.
VERSIONS = sorted(
    {one for one in utils.all_versions() if tuple(map(int, one.split("."))) >= (1, 30, 0)}
)
BETWEEN = [pytest.param(one, marks=pytest.mark.nightly) for one in VERSIONS[1:-1]]
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


@pytest.mark.parametrize("version", [VERSIONS[0], *BETWEEN, VERSIONS[-1]])
def test_each_document_is_valid(version: str) -> None:
    known = [one for one in everything() if one["kind"] not in FOREIGN]
    assert len(known) > 40
    for one in known:
        kubernetes_validate.validate(one, version, strict=True)


def test_the_kinds_of_others_are_as_we_know_them() -> None:
    seen = set()
    for one in everything():
        if (known := FOREIGN.get(one["kind"])) is not None:
            assert one.keys() == {"apiVersion", "kind", "metadata", "spec"}
            assert one["apiVersion"] == known["api"], one["metadata"]["name"]
            jsonschema.validate(one["spec"], json_schema(known["spec"]))
            seen.add(one["kind"])
    assert seen == set(FOREIGN)
    for job in of_kind(everything(), "PaddleJob"):
        worker = job["spec"]["paddleReplicaSpecs"]["Worker"]["template"]["spec"]
        assert "paddle" in {one["name"] for one in worker["containers"]}, "Kubeflow asks for it"


def test_what_stands_inside_the_kinds_of_others_is_valid_too() -> None:
    for pod in pods(everything()):
        meta = {"name": "a", "labels": dict(pod.labels)}
        whole = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod.spec}
        kubernetes_validate.validate(whole, VERSIONS[0], strict=True)
    for scaled in of_kind(everything(), "ScaledObject"):
        behavior = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        kind = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler"}
        target = {"scaleTargetRef": {"kind": "Deployment", "name": "a"}, "maxReplicas": 1}
        autoscaler = {**kind, "metadata": {"name": "a"}, "spec": {**target, "behavior": behavior}}
        kubernetes_validate.validate(autoscaler, VERSIONS[0], strict=True)


@pytest.mark.parametrize("component", COMPONENTS)
def test_each_component_is_built_with_the_base_alone(component: str) -> None:
    """Who lacks a CRD leaves its component out, so none needs another one."""
    made = compose((component,))
    assert {one["metadata"].get("namespace", "edl-dist") for one in made} == {"edl-dist"}
    names = [(one["kind"], one["metadata"]["name"]) for one in made]
    assert len(names) == len({*names})


def test_each_patch_is_one_document() -> None:
    """Old kubectl takes no more (1.30), or crashes on more with a deletion (before 1.34)."""
    patches = [
        one.get("patch") or (file.parent / one["path"]).read_text()
        for file in KUBERNETES.rglob("kustomization.yaml")
        for one in yaml.safe_load(file.read_text()).get("patches", ())
    ]
    assert len(patches) > 10
    assert [one for one in patches if len([*yaml.safe_load_all(one)]) > 1] == []


def test_kinds_that_a_cluster_may_lack_are_in_components_alone() -> None:
    for name in ("base", *OVERLAYS):
        assert not {one["kind"] for one in build(name)} & set(FOREIGN)


def test_the_dashboard_and_the_alerts_are_the_files_themselves() -> None:
    grafana = ROOT / "deploy" / "grafana"
    dashboard = named(build("whole"), "ConfigMap", "edl-dashboard")
    assert dashboard["data"]["edl-dist.json"] == (grafana / "dashboard.json").read_text()
    (rule,) = of_kind(build("whole"), "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((grafana / "alerts.yml").read_text())


#: Of the image, without what collects its orphans.
ENTRYPOINT = ContainerFile.read(ROOT / "deploy/containers/Containerfile").last("cpu", "ENTRYPOINT")


def ours(objects: Objects) -> Iterator[tuple[Pod, Object, list[str], dict[str, str]]]:
    """Pods, containers of our image, the words that these run, and their variables."""
    for pod in pods(objects):
        for container in pod.containers:
            if container["image"].partition(":")[0] == IMAGE:
                variables = environment(pod, container, objects)
                words = [*container.get("command", ENTRYPOINT.argv[2:]), *container.get("args", ())]
                yield pod, container, [expanded(word, variables) for word in words], variables


def test_each_command_line_is_one_that_edl_takes(name: str, objects: Objects) -> None:
    checked = 0
    for pod, _, argv, variables in ours(objects):
        if command_lines.is_ours(argv):
            command_lines.check(argv, variables)
            checked += 1
        else:  # of the example: it is made, and waited for
            assert argv[:3] == ["tini", "--", "sh"], f"{pod.owner} runs {argv}"
            assert name in ("dev", "whole")
    assert checked >= 2


def test_files_of_a_command_are_on_volumes(objects: Objects) -> None:
    for pod, container, argv, variables in ours(objects):
        mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
        words = [*argv[1:], *(f"{key}={value}" for key, value in variables.items())]
        for word in words:
            for place in re.findall(r"(?:^|=)(/[^&?,=]+)", word):
                holders = [at for at in mounts if Path(place).is_relative_to(at)]
                assert holders, f"{pod.owner}: {place} is on no volume"
                if word.startswith(WRITTEN):
                    assert not mounts[max(holders, key=len)].get("readOnly"), (pod.owner, place)
        assert "/tmp" in mounts
        assert variables["HOME"] == "/tmp"


def test_redis_urls_name_existing_users_and_servers(
    name: str, objects: Objects, tmp_path: Path
) -> None:
    (tmp_path / "password").write_text("x")
    (tmp_path / "password").chmod(0o440)
    found = 0
    for pod, _, _, variables in ours(objects):
        mounted = {one["secret"]["secretName"] for one in pod.spec["volumes"] if "secret" in one}
        for url in filter(None, map(variables.get, ("EDL_REDIS", "EDL_COORDINATOR"))):
            found += 1
            parsed = parse(re.sub(r"=/etc/edl/[^&]+", f"={tmp_path}/password", url))
            if user := parsed.login.get("username"):
                assert user.replace("edl-", "edl-redis-", 1) in mounted, f"{pod.owner} is {user}"
            for host, port in parsed.hosts if name != "elsewhere" else ():
                # Of a pod, as its StatefulSet and its Service call it.
                ((owner, number, service),) = re.findall(r"^(.+)-(\d)\.(.+)$", host)
                made = named(objects, "StatefulSet", owner)["spec"]
                assert int(number) < made["replicas"]
                assert made["serviceName"] == service
                ports = named(objects, "Service", service)["spec"]["ports"]
                assert port in {one["port"] for one in ports}
    assert found >= 2


#: What the profile `restricted` of pod security asks for, and a root that cannot be written.
RESTRICTED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
              "capabilities": {"drop": ["ALL"]}}  # fmt: skip


def test_pods_are_restricted_and_say_what_they_need(objects: Objects) -> None:
    space = named(objects, "Namespace", NAMESPACE)
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for pod in pods(objects):
        token = pod.labels[COMPONENT] == "operator"
        assert pod.spec["automountServiceAccountToken"] is token, pod.owner
        whole = pod.spec["securityContext"]
        assert (whole["runAsNonRoot"], whole["runAsUser"] > 0) == (True, True), pod.owner
        assert whole["seccompProfile"] == {"type": "RuntimeDefault"}, pod.owner
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.spec.keys(), pod.owner
        for container in pod.containers:
            image, _, tag = container["image"].partition(":")
            assert image in (IMAGE, "valkey/valkey"), "of the cluster's default registry"
            assert image != IMAGE or tag.removesuffix("-gpu") == edl.__version__
            assert container["securityContext"] == RESTRICTED, pod.owner
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]), pod.owner
            assert "memory" in container["resources"]["limits"], pod.owner
        for volume in pod.spec["volumes"]:
            assert "hostPath" not in volume, pod.owner
            assert "emptyDir" not in volume or "sizeLimit" in volume["emptyDir"], pod.owner
            if "secret" in volume:  # passwords that everybody may read are refused by us
                assert volume["secret"]["defaultMode"] & 0o007 == 0, pod.owner
    for account in of_kind(objects, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


def test_probes_ask_the_health_endpoints(objects: Objects) -> None:
    with_tls = bool(of_kind(objects, "Certificate"))
    for pod, container, argv, variables in ours(objects):
        component = pod.labels[COMPONENT]
        if container != pod.main or component not in ("coordinator", "teacher", "operator"):
            continue
        of_http = component == "teacher" and not with_tls
        live, ready = ("/v2/health/live", "/v2/health/ready") if of_http else (LIVE, READY)
        # A teacher has started when its self-test is passed; others live before they are ready.
        started = ready if component == "teacher" else live
        probes = {"startupProbe": started, "livenessProbe": live, "readinessProbe": ready}
        for probe, path in probes.items():
            asked = {"path": path, "port": "http" if of_http else "metrics"}
            assert container[probe]["httpGet"] == asked, (pod.owner, probe)
        values = command_lines.check(argv, variables)
        options = {
            "grpc": "listen", "http": "http", "transport": "transport_port",
            "metrics": "metrics_listen",
        }  # fmt: skip
        for port_name, option in options.items():
            number = str(values.get(option)).rpartition(":")[2]
            assert number == str(pod.ports.get(port_name)), (pod.owner, port_name)


def test_components_keep_the_tolerations_of_others() -> None:
    teacher = next(pod for pod in pods(build("whole")) if pod.labels[COMPONENT] == "teacher")
    assert {"nvidia.com/gpu", "spot"} <= {one["key"] for one in teacher.spec["tolerations"]}


def drain_hooks(objects: Objects) -> list[list[str]]:
    """What each kind of teacher's pod runs before it ends."""
    teachers = [pod.main for pod in pods(objects) if pod.labels[COMPONENT] == "teacher"]
    return [one["lifecycle"]["preStop"]["exec"]["command"] for one in teachers]


def test_teachers_have_time_to_drain(name: str, objects: Objects) -> None:
    (hook,) = drain_hooks(build("base"))
    assert {*map(tuple, drain_hooks(objects))} == {tuple(hook)}
    for pod, container, argv, variables in ours(objects):
        if container == pod.main and pod.labels[COMPONENT] == "teacher":
            grace_s = command_lines.check(argv, variables)["grace"]
            given_s = pod.spec["terminationGracePeriodSeconds"]
            assert given_s >= grace_s + 10
            if name in ("spot", "whole"):
                assert grace_s <= 20
                assert given_s <= 30, "the notice of a spot machine"


def test_the_hook_lasts_until_the_first_process_has_gone(tmp_path: Path) -> None:
    """Else Kubernetes's own SIGTERM, a second one, would end a drain at once."""
    ((*shell, script),) = drain_hooks(build("base"))
    # The process ends when the hook has waited for it three times.
    go, waited = tmp_path / "go", tmp_path / "waited"
    sleep = tmp_path / "sleep"
    sleep.write_text(
        f"#!/bin/sh\necho >>{waited}\n[ $(wc -l <{waited}) -lt 3 ] || touch {go}\n"
        "exec /bin/sleep 0.02\n"
    )
    sleep.chmod(0o755)
    process = start(python(DRAINING, go, name="draining"))
    process.expect("ready", DEADLINE_S)
    done = subprocess.run(
        [*shell, re.sub(r" 1\b", f" {process.pid}", script)],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0
    assert len(waited.read_text()) >= 3
    assert process.wait(DEADLINE_S) == 0

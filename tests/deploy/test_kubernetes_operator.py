"""The operator in `deploy/kubernetes/`: its rights are what it does, and its examples work."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
import yaml

from edl.deploy.operator.jobs.pods import pod_of
from edl.deploy.operator.teachers.manifests import deployment_of
from edl.mesh.kubernetes import resources
from edl.mesh.kubernetes.resources import Kind
from edl.tests.deploy import command_lines
from edl.tests.deploy.kube_api.cluster import definitions
from edl.tests.deploy.kube_api.schema import defaulted, faults, pruned
from edl.tests.deploy.kubernetes import (
    KUBERNETES,
    NAMESPACE,
    ROOT,
    Object,
    Pod,
    Right,
    build,
    environment,
    expanded,
    granted,
    kustomize,
    named,
    of_kind,
    selects,
)
from edl.tests.deploy.operator.test_loop import WATCHED

pytestmark = pytest.mark.system

#: What methods of `mesh/kubernetes/client.py` ask an API server for.
VERBS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("get", "list", "create", "patch", "delete")},
    "find": ("get",), "apply": ("create", "patch"), "replace": ("update",),
    "patch_status": ("patch",),
}  # fmt: skip
#: Kinds that stand in a variable where the operator makes what a TeacherService has.
VARIABLE = {"kind": ("DEPLOYMENT", "SERVICE")}
#: Asked for by an API server that checks owners, with no call of ours.
OF_OWNERS = {
    ("edl-dist.io", f"{one}/finalizers", "update") for one in ("teacherservices", "distilljobs")
}


def calls() -> Iterator[tuple[Kind, str, str, bool]]:
    """Kind, method, subresource of each call of the client; whether it is for all namespaces."""
    for file in (ROOT / "deploy" / "operator").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if not ast.unparse(node.func.value).endswith("client") or node.func.attr not in VERBS:
                continue
            words = {word.arg: ast.unparse(word.value) for word in node.keywords}
            everywhere = "ALL_NAMESPACES" in [*map(ast.unparse, node.args), *words.values()]
            name = ast.unparse(node.args[0])
            for one in VARIABLE.get(name, (name,)):
                kind = getattr(resources, one)
                assert isinstance(kind, Kind), f"{file.name} calls with {name}"
                subresource = words.get("subresource", "''").strip("'\"")
                if node.func.attr == "patch_status":
                    subresource = "status"
                yield kind, node.func.attr, subresource, everywhere or not kind.namespaced


def right(kind: Kind, verb: str, subresource: str = "") -> Right:
    group = kind.api_version.rpartition("/")[0]
    return group, f"{kind.plural}/{subresource}".rstrip("/"), verb


def test_its_rights_are_what_it_calls_and_no_more() -> None:
    here: set[Right] = set()
    everywhere: set[Right] = set()
    for kind, method, subresource, cluster in calls():
        asked = {right(kind, verb, subresource) for verb in VERBS[method]}
        (everywhere if cluster else here).update(asked)
    for kind in WATCHED:
        here |= {right(kind, "list"), right(kind, "watch")}
    objects = build("whole")
    roles = {one["metadata"]["name"]: one for one in of_kind(objects, "Role", "ClusterRole")}
    assert set(roles) == {"edl-operator", "edl-jobs", "edl-operator-capacity"}
    own, capacity = granted(roles["edl-operator"]), granted(roles["edl-operator-capacity"])
    assert own - OF_OWNERS == here, (own - OF_OWNERS - here, here - own)
    assert capacity == everywhere, (capacity - everywhere, everywhere - capacity)
    assert not any("*" in word for one in own | capacity for word in one)
    for one in of_kind(objects, "RoleBinding", "ClusterRoleBinding"):
        assert [subject["name"] for subject in one["subjects"]] == ["edl-operator"]


def as_stored(resource: Object) -> Object:
    """A resource as an API server keeps it: valid by its definition, with defaults."""
    specs = {one["spec"]["names"]["kind"]: one["spec"] for one in definitions()}
    version = specs[resource["kind"]]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    assert resource["apiVersion"] == f"edl-dist.io/{version['name']}"
    known = schema["properties"]["spec"]
    assert pruned(resource["spec"], known) == resource["spec"], "a field that is not defined"
    whole: Object = defaulted(resource, schema)
    assert faults(whole, schema) == []
    given = {"namespace": NAMESPACE, **whole["metadata"]}
    return {**whole, "metadata": {**given, "uid": "12345678-9abc", "generation": 1}}


def pod_made_from(resource: Object, coordinator: str | None) -> Pod:
    """The pod that the operator makes of it, which every cluster takes."""
    if resource["kind"] == "TeacherService":
        made = deployment_of(as_stored(resource), 2, coordinator)
        template = made["spec"]["template"]
    else:
        made = template = pod_of(as_stored(resource), 1, coordinator)
    kubernetes_validate.validate(made, "1.30", strict=True)
    return Pod(made["kind"], template["metadata"]["labels"], template["spec"])


def options_of(pod: Pod) -> dict[str, Any]:
    """Values of the options with which `edl` starts in a pod."""
    variables = environment(pod, pod.main, ())
    argv = ["edl", *(expanded(word, variables) for word in pod.main["args"])]
    facts = {"EDL_JOB", "EDL_JOB_NODE"}  # about the pod; no option is called so
    return command_lines.check(argv, {k: v for k, v in variables.items() if k not in facts})


def test_the_page_shows_resources_that_work() -> None:
    page = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()
    shown = [yaml.safe_load(one) for one in re.findall(r"```yaml\n(apiV.*?)```", page, re.DOTALL)]
    assert {one["kind"] for one in shown} == {"TeacherService", "DistillJob"}
    for resource in shown:
        pod = pod_made_from(resource, "redis://head:6379")
        options_of(pod)
        mounted = {one["name"] for one in pod.main["volumeMounts"]}
        assert mounted == {one["name"] for one in pod.spec["volumes"]}


@pytest.mark.parametrize(
    ("kind", "component", "values"),
    [
        ("TeacherService", "teacher", {"service": "ctr"}),
        ("DistillJob", "student", {"nodes": "1:4", "job": "ctr"}),
    ],
)
def test_the_examples_fit_into_the_mesh(kind: str, component: str, values: Object) -> None:
    (resource,) = of_kind(kustomize(KUBERNETES / "examples"), kind)
    assert resource["metadata"]["namespace"] == NAMESPACE
    pod = pod_made_from(resource, None)
    options = options_of(pod)
    assert options.items() >= values.items()
    if component == "teacher":
        assert pod.ports.get("grpc") == options["listen"].port
    policy = named(build("base"), "NetworkPolicy", f"edl-{component}")
    assert selects(policy["spec"]["podSelector"], pod.labels)
    objects = build("whole")
    claims = {one["metadata"]["name"] for one in of_kind(objects, "PersistentVolumeClaim")}
    secrets = {"edl-redis-teacher-ctr", "edl-redis-student"}
    for volume in pod.spec["volumes"]:
        assert volume.get("persistentVolumeClaim", {"claimName": "edl-work"})["claimName"] in claims
        assert volume.get("secret", {"secretName": "edl-redis-student"})["secretName"] in secrets
    accounts = {one["metadata"]["name"] for one in of_kind(objects, "ServiceAccount")}
    assert pod.spec["serviceAccountName"] in accounts
    assert {"/etc/edl/redis", "/tmp"} <= {one["mountPath"] for one in pod.main["volumeMounts"]}

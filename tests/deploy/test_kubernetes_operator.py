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
from edl.tests.deploy.kube_api.schema import defaulted, faults, pruned
from edl.tests.deploy.kubernetes import (
    KUBERNETES,
    NAMESPACE,
    ROOT,
    Object,
    Pod,
    build,
    environment,
    expanded,
    kustomize,
    named,
    of_kind,
    selects,
)
from edl.tests.deploy.operator.test_loop import WATCHED

pytestmark = pytest.mark.system

#: Group, resource and verb.
Right = tuple[str, str, str]

#: What methods of `mesh/kubernetes/client.py` ask an API server for.
VERBS = {
    "get": ("get",),
    "find": ("get",),
    "list": ("list",),
    "create": ("create",),
    "patch": ("patch",),
    "apply": ("create", "patch"),
    "replace": ("update",),
    "delete": ("delete",),
}
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
                yield kind, node.func.attr, subresource, everywhere or not kind.namespaced


def right(kind: Kind, verb: str, subresource: str = "") -> Right:
    group = kind.api_version.rpartition("/")[0]
    return group, f"{kind.plural}/{subresource}".rstrip("/"), verb


def granted(role: Object) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_its_rights_are_what_it_calls_and_no_more() -> None:
    here: set[Right] = set()
    everywhere: set[Right] = set()
    for kind, method, subresource, cluster in calls():
        asked = {right(kind, verb, subresource) for verb in VERBS[method]}
        (everywhere if cluster else here).update(asked)
    for kind in WATCHED:
        here |= {right(kind, "list"), right(kind, "watch")}
    objects = build("whole")
    roles = {
        (one["kind"], one["metadata"]["name"]): one
        for one in of_kind(objects, "Role", "ClusterRole")
    }
    assert set(roles) == {
        ("Role", "edl-operator"),
        ("Role", "edl-jobs"),
        ("ClusterRole", "edl-operator-capacity"),
    }
    own = granted(roles["Role", "edl-operator"])
    assert own - OF_OWNERS == here, (own - OF_OWNERS - here, here - own)
    capacity = granted(roles["ClusterRole", "edl-operator-capacity"])
    assert capacity == everywhere, (capacity - everywhere, everywhere - capacity)
    assert not any("*" in word for one in own | capacity for word in one)


def test_the_role_of_those_who_submit_jobs_is_the_one_of_the_page() -> None:
    # tests/mesh/jobs/kubernetes/test_cluster.py: the commands need these rights and no others.
    page = (ROOT / "docs" / "elastic-jobs.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (shown,) = (yaml.safe_load(one) for one in blocks if "kind: Role" in one)
    assert granted(named(build("whole"), "Role", "edl-jobs")) == granted(shown)


def test_nobody_else_has_rights() -> None:
    for one in of_kind(build("whole"), "RoleBinding", "ClusterRoleBinding"):
        assert [subject["name"] for subject in one["subjects"]] == ["edl-operator"]


# Its examples


@pytest.fixture(scope="module")
def examples() -> dict[str, Object]:
    """As an API server keeps them: held against the schema of their definition, with defaults."""
    definitions = {
        one["spec"]["names"]["kind"]: one
        for one in of_kind(build("whole"), "CustomResourceDefinition")
    }
    made = {}
    for one in kustomize(KUBERNETES / "examples"):
        version = definitions[one["kind"]]["spec"]["versions"][0]
        assert one["metadata"]["namespace"] == NAMESPACE
        assert one["apiVersion"] == f"edl-dist.io/{version['name']}"
        schema = version["schema"]["openAPIV3Schema"]
        known = schema["properties"]["spec"]
        assert pruned(one["spec"], known) == one["spec"], (
            "a field that the definition does not know"
        )
        whole = defaulted(one, schema)
        assert faults(whole, schema) == []
        whole["metadata"] |= {"uid": "12345678-9abc", "generation": 1}
        made[one["kind"]] = whole
    assert set(made) == set(definitions)
    return made


def test_the_service_becomes_teachers_that_the_mesh_takes(examples: dict[str, Object]) -> None:
    deployment = deployment_of(examples["TeacherService"], 2, None)
    kubernetes_validate.validate(deployment, "1.30", strict=True)
    template = deployment["spec"]["template"]
    pod = Pod("Deployment ctr", template["metadata"]["labels"], template["spec"])
    values = _check(pod)
    assert values["service"] == "ctr"
    assert pod.port("grpc") == values["port"]
    assert _is_like(pod, "teacher")


def test_the_job_becomes_nodes_that_the_mesh_takes(examples: dict[str, Object]) -> None:
    made = pod_of(examples["DistillJob"], 1, None)
    kubernetes_validate.validate(made, "1.30", strict=True)
    pod = Pod("Pod ctr-1", made["metadata"]["labels"], made["spec"])
    values = _check(pod)
    assert values["nodes"] == "1:4"
    assert _is_like(pod, "student")


def _check(pod: Pod) -> dict[str, Any]:
    """That `edl` takes its command line, and its volumes are there or told of in the example."""
    container = pod.main
    variables = environment(pod, container, ())
    argv = ["edl", *(expanded(word, variables) for word in container["args"])]
    objects = build("whole")
    claims = {one["metadata"]["name"] for one in of_kind(objects, "PersistentVolumeClaim")}
    secrets = {"edl-redis-teacher-ctr", "edl-redis-student"}
    for volume in pod.spec["volumes"]:
        assert volume.get("persistentVolumeClaim", {"claimName": "edl-work"})["claimName"] in claims
        assert volume.get("secret", {"secretName": "edl-redis-student"})["secretName"] in secrets
    accounts = {one["metadata"]["name"] for one in of_kind(objects, "ServiceAccount")}
    assert pod.spec["serviceAccountName"] in accounts
    mounts = [one["mountPath"] for one in container["volumeMounts"]]
    assert {"/etc/edl/redis", "/tmp"} <= {*mounts}
    known = {"EDL_JOB", "EDL_JOB_NODE"}  # for who looks into a pod; no option is called so
    told = {key: value for key, value in variables.items() if key not in known}
    return command_lines.check(argv, told)


def _is_like(pod: Pod, component: str) -> bool:
    """Whether the policies for the pods of a component are for this one too."""
    policy = named(build("base"), "NetworkPolicy", f"edl-{component}")
    return selects(policy["spec"]["podSelector"], pod.labels)

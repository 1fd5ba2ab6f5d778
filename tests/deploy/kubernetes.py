"""Manifests of `deploy/kubernetes/` as a cluster gets them: built by kustomize, once a session."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final

import yaml

import edl

ROOT: Final = Path(edl.__file__).resolve().parent
KUBERNETES: Final = ROOT / "deploy" / "kubernetes"
NAMESPACE: Final = "edl-dist"
COMPONENT: Final = "app.kubernetes.io/component"
COMPONENTS: Final = tuple(
    sorted(one.parent.name for one in KUBERNETES.glob("components/*/kustomization.yaml"))
)
#: What is looked at: overlays, and compositions that users make: base and components, in order.
OVERLAYS: Final = tuple(
    sorted(one.parent.name for one in KUBERNETES.glob("overlays/*/kustomization.yaml"))
)
COMPOSED: Final[Mapping[str, tuple[str, ...]]] = {
    "base": (),
    "whole": (
        "student-job", "example-model", "kubeflow", "gpu", "spot", "keda", "monitoring", "operator",
        "cert-manager",
    ),
    "elsewhere": ("student-job", "operator", "hpa", "cert-manager", "managed-redis"),
}  # fmt: skip
BUILDS: Final = (*OVERLAYS, *COMPOSED)

Object = dict[str, Any]
#: API group, resource and verb.
Right = tuple[str, str, str]


@cache
def build(name: str) -> tuple[Object, ...]:
    if name in OVERLAYS:
        return kustomize(KUBERNETES / "overlays" / name)
    return compose(COMPOSED[name])


@cache
def compose(components: tuple[str, ...]) -> tuple[Object, ...]:
    """The base with these components, as an overlay of a user's has them."""
    with tempfile.TemporaryDirectory() as made:
        here = Path(made).resolve()
        folders = [KUBERNETES / "base", *(KUBERNETES / "components" / one for one in components)]
        base, *others = (os.path.relpath(folder, here) for folder in folders)
        kind = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
        overlay = {**kind, "namespace": NAMESPACE, "resources": [base], "components": others}
        (here / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
        return kustomize(here)


def kustomize(folder: Path) -> tuple[Object, ...]:
    """What `kubectl kustomize` makes of a folder; it says nothing besides."""
    kubectl = Path(sys.executable).with_name("kubectl")
    done = subprocess.run(
        [kubectl, "kustomize", str(folder)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", done.stderr  # of fields that will go
    return tuple(yaml.load_all(done.stdout, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


@cache
def printed_secrets(*services: str) -> dict[str, dict[str, bytes]]:
    """What `secrets.sh SERVICE...` prints: Secret -> key -> value."""
    with tempfile.TemporaryDirectory() as folder:
        edl_program = Path(folder) / "edl"
        edl_program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m edl "$@"\n')
        edl_program.chmod(0o755)
        env = {"PATH": "/usr/bin:/bin", "EDL": str(edl_program)}
        command = [str(KUBERNETES / "secrets.sh"), *services]
        printed = subprocess.check_output(command, env=env, timeout=60)
    return {
        one["metadata"]["name"]: {key: b64decode(value) for key, value in one["data"].items()}
        for one in yaml.safe_load_all(printed)
    }


def of_kind(objects: Iterable[Object], *kinds: str) -> list[Object]:
    return [one for one in objects if one["kind"] in kinds]


def named(objects: Iterable[Object], kind: str, name: str) -> Object:
    return next(one for one in of_kind(objects, kind) if one["metadata"]["name"] == name)


def granted(role: Object) -> set[Right]:
    return {
        right
        for rule in role["rules"]
        for right in product(rule["apiGroups"], rule["resources"], rule["verbs"])
    }


@dataclass(frozen=True)
class Pod:
    """A pod as its `owner`, a kind and a name, makes it."""

    owner: str
    labels: Mapping[str, str]
    spec: Object

    @property
    def containers(self) -> list[Object]:
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]

    @property
    def main(self) -> Object:
        """The one container that is there for good."""
        (found,) = self.spec["containers"]
        return dict(found)

    @property
    def ports(self) -> dict[str, int]:
        ports = [port for one in self.containers for port in one.get("ports", ())]
        return {port["name"]: port["containerPort"] for port in ports}


def pods(objects: Iterable[Object]) -> Iterator[Pod]:
    """Each kind of pod that these objects make."""
    for one in objects:
        owner = f"{one['kind']} {one['metadata']['name']}"
        match one["kind"]:
            case "Deployment" | "StatefulSet" | "Job":
                templates = [one["spec"]["template"]]
            case "PaddleJob":
                roles = one["spec"]["paddleReplicaSpecs"].values()
                templates = [role["template"] for role in roles]
            case _:
                continue
        for template in templates:
            yield Pod(owner, template["metadata"]["labels"], template["spec"])


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector, with `matchLabels` and `matchExpressions`, takes these labels."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for one in selector.get("matchExpressions", ()):
        assert one["operator"] == "In", "others are not used here"
        if labels.get(one["key"]) not in one["values"]:
            return False
    return True


def environment(pod: Pod, container: Object, objects: Iterable[Object]) -> dict[str, str]:
    """Variables of a container as its process finds them; a pod's own facts are made up."""
    facts = {"status.podIP": "10.1.2.3", "metadata.name": "a-pod", "metadata.namespace": NAMESPACE}
    known: dict[str, str] = {}
    for one in container.get("env", ()):
        source = one.get("valueFrom", {})
        if "fieldRef" in source:
            value = facts[source["fieldRef"]["fieldPath"]]
        elif "configMapKeyRef" in source:
            wanted = source["configMapKeyRef"]
            value = named(objects, "ConfigMap", wanted["name"])["data"][wanted["key"]]
        else:
            value = expanded(one["value"], known)
        known[one["name"]] = value
    return known


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` by its value, as a kubelet does for arguments and variables."""
    for name, value in variables.items():
        text = text.replace(f"$({name})", value)
    assert "$(" not in text, f"nothing is known of a variable in {text}"
    return text

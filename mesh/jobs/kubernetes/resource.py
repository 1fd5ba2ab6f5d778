"""Conversion between a job's file and a DistillJob resource."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ....coordinator.store.records import Facts
from ....coordinator.store.redis_url import holds_password
from ....runtime.errors import UsageError
from ...kubernetes.resources import DISTILL_JOB, GPU, Object
from ..spec import QueuedJobSpec

#: Names that the schema of the resource allows; names of pods append a number.
NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")
#: Keys of a job's file by keys of the resource.
_KEYS: Final = {
    "image": "image",
    "train": "train",
    "command": "command",
    "minNodes": "min_nodes",
    "maxNodes": "max_nodes",
    "priority": "priority",
    "retries": "retries",
    "graceSeconds": "grace_s",
    "env": "env",
    "checkpoint": "checkpoint_claim",
    "coordinator": "coordinator",
}


def to_resource(spec: QueuedJobSpec, namespace: str = "") -> Object:
    """Return the resource of a job.

    Args:
        spec: the job; its `folder` does not apply to a cluster and is left out.
        namespace: namespace of the resource; empty: none is set.

    Raises:
        UsageError: the name is invalid on a cluster, the image is missing, or the coordinator's URL
            has a password.
    """
    if not NAME.fullmatch(spec.name):
        raise UsageError(
            "name: on Kubernetes 1 to 52 small letters, digits or '-', beginning and ending with a"
            f" letter or digit; {spec.name!r} is none"
        )
    if not spec.image:
        raise UsageError(
            "image: a job on Kubernetes names the image that its nodes run, with what it trains in"
            " it: docs/how-to/elastic-jobs.md shows one"
        )
    if holds_password(spec.coordinator):
        raise UsageError(
            "coordinator: the URL holds a password, which the resource would show: have a Secret"
            " mounted in the job's pods (docs/how-to/kubernetes.md), and name its file in the URL"
            " as ?password_file=FILE"
        )
    values: Object = {theirs: getattr(spec, ours) for theirs, ours in _KEYS.items()}
    values["graceSeconds"] = math.ceil(spec.grace_s)  # grace periods of pods are whole seconds
    values["env"] = dict(spec.env)
    values["resources"] = _claims(spec.resources)
    return {
        "apiVersion": DISTILL_JOB.api_version,
        "kind": DISTILL_JOB.kind,
        "metadata": {"name": spec.name, **({"namespace": namespace} if namespace else {})},
        "spec": {key: value for key, value in values.items() if value or value == 0},
    }


def _claims(needs: Mapping[str, Any]) -> Object:
    """Return requests and limits of a container.

    Memory and accelerators are limited to the request. Cores are not limited: a node may use idle
    cores beyond its request.
    """
    requests = {GPU if name == "gpu" else name: str(amount) for name, amount in needs.items()}
    limits = {name: amount for name, amount in requests.items() if name != "cpu"}
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}


def facts_of(resource: Object) -> Facts:
    """Return the unchecked values of a resource by keys of a job's file; leave out missing values.

    `QueuedJobSpec(**facts)` equals the argument of `to_resource`, except for `folder` and fractions
    of a second in `grace_s`.
    """
    spec = resource.get("spec") or {}
    facts: dict[str, Any] = {"name": resource["metadata"]["name"]}
    facts |= {ours: spec[theirs] for theirs, ours in _KEYS.items() if theirs in spec}
    claims = spec.get("resources") or {}
    # A limit without a request is also the request.
    needs = {**(claims.get("limits") or {}), **(claims.get("requests") or {})}
    if needs:
        facts["resources"] = {("gpu" if name == GPU else name): needs[name] for name in needs}
    return facts


if TYPE_CHECKING:
    from ..backend import JobLocation


def manifest(spec: QueuedJobSpec, where: JobLocation) -> Iterator[str]:
    """Yield the lines of a YAML manifest for `kubectl apply -f -`, with notes as comments.

    Raises:
        UsageError: as for `to_resource`.
    """
    import yaml

    for note in notes(spec):
        yield f"# {note}"
    resource = to_resource(spec, where.namespace)
    # Without allow_unicode, YAML escapes characters that it treats as line breaks.
    yield from yaml.safe_dump(resource, sort_keys=False, width=100).rstrip("\n").split("\n")


def notes(spec: QueuedJobSpec) -> list[str]:
    """Return hints about keys that a cluster ignores or needs, one sentence each."""
    found = []
    if spec.folder != Path():
        found.append(
            "folder is of a fleet's machine: nodes on Kubernetes run in the folder of their image"
        )
    if not spec.resources.keys() - {"memory", "ephemeral-storage"}:
        found.append(
            "resources name neither cpu nor gpu: it is taken to need none, and grows to max_nodes"
        )
    return found

"""A job's file as a resource of kind DistillJob, and back: names and units, nothing else."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from ....coordinator.store.facts import Facts
from ....coordinator.store.redis_url import holds_password
from ....errors import UsageError
from ...kubernetes.resources import DISTILL_JOB, GPU, Object
from ..spec import JobSpec

#: As the resource's schema has it: pods of the job are called so, with a number behind.
NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")
#: Key of the resource -> key of a job's file, where it is the same in another spelling.
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
}


def to_resource(spec: JobSpec, namespace: str = "", coordinator: str = "") -> Object:
    """The resource of a job.

    Args:
        spec: what its file says; `folder` is of a fleet's machine and left out.
        namespace: where it is to be; empty: nothing is said of it.
        coordinator: Redis URL that its nodes are told; empty: the operator's.

    Raises:
        UsageError: its name cannot be one on a cluster, it names no image, or a password stands in
            the URL.
    """
    if not NAME.fullmatch(spec.name):
        raise UsageError(
            "name: on Kubernetes 1 to 52 small letters, digits or '-', beginning and ending with a"
            f" letter or digit; {spec.name!r} is none"
        )
    if not spec.image:
        raise UsageError(
            "image: a job on Kubernetes names the image that its nodes run, with what it trains in"
            " it: docs/elastic-jobs.md shows one"
        )
    if holds_password(coordinator):
        raise UsageError(
            "--coordinator: the URL holds a password, which the resource would show: have a Secret"
            " mounted in the job's pods (docs/operator.md), and name its file in the URL as"
            " ?password_file=FILE"
        )
    said: Object = {theirs: getattr(spec, ours) for theirs, ours in _KEYS.items()}
    said["graceSeconds"] = math.ceil(spec.grace_s)  # pods have whole seconds
    said["env"] = dict(spec.env)
    said["resources"] = _claims(spec.resources)
    said["coordinator"] = coordinator
    return {
        "apiVersion": DISTILL_JOB.api_version,
        "kind": DISTILL_JOB.kind,
        "metadata": {"name": spec.name, **({"namespace": namespace} if namespace else {})},
        "spec": {key: value for key, value in said.items() if value or value == 0},
    }


def _claims(needs: Mapping[str, Any]) -> Object:
    """Requests and limits of a container.

    Of memory and of cards a node has exactly what it asks for: what a cluster has promised it has
    to be there. Cores that are idle may be used beyond that, so they have no limit.
    """
    requests = {GPU if name == "gpu" else name: str(amount) for name, amount in needs.items()}
    limits = {name: amount for name, amount in requests.items() if name != "cpu"}
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}


def facts_of(resource: Object) -> Facts:
    """What a resource says, by the keys of a job's file; what was left out is left out here too.

    Resources need not be ours: nothing is checked. `JobSpec(**facts)` is what `to_resource` was
    given, but for its `folder`, and parts of a second of its grace.
    """
    spec = resource.get("spec") or {}
    facts: dict[str, Any] = {"name": resource["metadata"]["name"]}
    facts |= {ours: spec[theirs] for theirs, ours in _KEYS.items() if theirs in spec}
    claims = spec.get("resources") or {}
    # Of what has a limit alone, as cards may, the limit is what is requested.
    needs = {**(claims.get("limits") or {}), **(claims.get("requests") or {})}
    if needs:
        facts["resources"] = {("gpu" if name == GPU else name): needs[name] for name in needs}
    return facts

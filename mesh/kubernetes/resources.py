"""Kinds of Kubernetes objects and their API paths; labels, times and quantities."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from ...runtime.errors import UsageError

#: A Kubernetes object as JSON values.
Object = dict[str, Any]
Objects = list[Object]

GROUP: Final = "edl-dist.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of Kubernetes objects.

    Attributes:
        api_version: "v1", or group and version.
        kind: name in manifests.
        plural: name in paths and RBAC rules.
        namespaced: objects of this kind are in namespaces.
    """

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of the collection, of an object, or of a subresource.

        Args:
            namespace: empty: all namespaces (for collections only).
            name: empty: the collection.
            subresource: "status", "scale", "log"; empty: none.
        """
        root = "/apis/" if "/" in self.api_version else "/api/"
        where = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        tail = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{root}{self.api_version}{where}/{self.plural}{tail}"


TEACHER_SERVICE: Final = Kind(API_VERSION, "TeacherService", "teacherservices")
DISTILL_JOB: Final = Kind(API_VERSION, "DistillJob", "distilljobs")
POD: Final = Kind("v1", "Pod", "pods")
SERVICE: Final = Kind("v1", "Service", "services")
EVENT: Final = Kind("v1", "Event", "events")
NODE: Final = Kind("v1", "Node", "nodes", namespaced=False)
DEPLOYMENT: Final = Kind("apps/v1", "Deployment", "deployments")
LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")

#: Labels that Kubernetes recommends, and labels of EDL-Dist.
NAME_LABEL: Final = "app.kubernetes.io/name"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
PART_OF_LABEL: Final = "app.kubernetes.io/part-of"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
SERVICE_LABEL: Final = f"{GROUP}/service"
JOB_LABEL: Final = f"{GROUP}/job"
NODE_LABEL: Final = f"{GROUP}/node"
APP: Final = "edl-dist"
OPERATOR: Final = "edl-operator"
#: Label selector of the pods that are nodes of elastic jobs.
NODES_SELECTOR: Final = f"{MANAGED_BY_LABEL}={OPERATOR},{JOB_LABEL}"
#: Container of a job's pod that runs the node; a template or the cluster may add others.
NODE_CONTAINER: Final = "node"
#: Name of the resource of GPUs.
GPU: Final = "nvidia.com/gpu"


def labels_of(component: str, **values: str) -> dict[str, str]:
    """Return the labels of an object that the operator creates.

    Args:
        component: "teacher" or "student".
        values: values of the labels for `service`, `job` and `node`.
    """
    names = {"service": SERVICE_LABEL, "job": JOB_LABEL, "node": NODE_LABEL}
    return {
        NAME_LABEL: APP,
        COMPONENT_LABEL: component,
        PART_OF_LABEL: APP,
        MANAGED_BY_LABEL: OPERATOR,
        **{names[key]: value for key, value in values.items()},
    }


def selector(labels: Mapping[str, str]) -> str:
    """Return a label selector, "a=b,c=d", for objects with all these labels."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def key_of(resource: Mapping[str, Any]) -> tuple[str, str]:
    """Return namespace and name of an object."""
    return resource["metadata"].get("namespace", ""), resource["metadata"]["name"]


def is_job_node(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod is a node of an elastic job, which makes room for other pods."""
    labels = pod["metadata"].get("labels") or {}
    return labels.get(MANAGED_BY_LABEL) == OPERATOR and JOB_LABEL in labels


def owner_reference(owner: Mapping[str, Any]) -> Object:
    """Return a controller reference to an owner; the server deletes dependents with the owner."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def is_controlled_by(resource: Mapping[str, Any], uid: str) -> bool:
    """Return whether the owner with this uid controls an object.

    A former owner of the same name had another uid.
    """
    references = resource["metadata"].get("ownerReferences", ())
    return any(one.get("controller") and one.get("uid") == uid for one in references)


def rfc3339(seconds: float) -> str:
    """Format seconds since 1970 with microseconds, as in Lease objects."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def rfc3339_s(seconds: float) -> str:
    """Format seconds since 1970 as whole seconds, as in conditions and `date-time` fields."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: str) -> float:
    """Return the seconds since 1970 of a time in RFC 3339.

    Raises:
        UsageError: the text is not such a time.
    """
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, TypeError):
        raise UsageError(f"{text!r:.60} is not an RFC 3339 time") from None


_FACTORS: Final = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "E": 1e18, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
    "Ei": 2.0**60,
}  # fmt: skip
_QUANTITY: Final = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)([numkMGTPE]|[KMGTPE]i|)"
)


def quantity(value: str | int | float) -> float:
    """Return the value of a quantity, such as 0.5 for "500m" and 2147483648 for "2Gi".

    Raises:
        UsageError: the value is not a quantity.
    """
    match = _QUANTITY.fullmatch(str(value).strip())
    if match is None:
        raise UsageError(f"{value!r:.60} is no quantity of Kubernetes, such as 500m, 2 or 4Gi")
    return float(match[1]) * _FACTORS[match[2]]

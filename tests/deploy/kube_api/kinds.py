"""Kinds of Kubernetes objects that the emulated API server knows."""

from __future__ import annotations

from typing import Final

from edl.mesh.kubernetes import resources
from edl.mesh.kubernetes.resources import Kind

JOB: Final = Kind("batch/v1", "Job", "jobs")
SECRET: Final = Kind("v1", "Secret", "secrets")
CONFIG_MAP: Final = Kind("v1", "ConfigMap", "configmaps")
NAMESPACE: Final = Kind("v1", "Namespace", "namespaces", namespaced=False)
CRD: Final = Kind(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", False
)
KINDS: Final = (
    resources.TEACHER_SERVICE, resources.DISTILL_JOB, resources.POD, resources.SERVICE, SECRET,
    CONFIG_MAP, resources.EVENT, resources.NODE, NAMESPACE, resources.DEPLOYMENT, JOB,
    resources.LEASE, CRD,
)  # fmt: skip

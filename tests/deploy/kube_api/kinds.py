"""Kinds of Kubernetes objects that the emulated API server knows."""

from __future__ import annotations

from typing import Final

from edl.mesh.kubernetes.resources import (
    DEPLOYMENT,
    DISTILL_JOB,
    EVENT,
    LEASE,
    NODE,
    POD,
    SERVICE,
    TEACHER_SERVICE,
    Kind,
)

JOB: Final = Kind("batch/v1", "Job", "jobs")
SECRET: Final = Kind("v1", "Secret", "secrets")
CONFIG_MAP: Final = Kind("v1", "ConfigMap", "configmaps")
NAMESPACE: Final = Kind("v1", "Namespace", "namespaces", namespaced=False)
CRD: Final = Kind(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", False
)
KINDS: Final = (
    TEACHER_SERVICE, DISTILL_JOB, POD, SERVICE, SECRET, CONFIG_MAP, EVENT, NODE, NAMESPACE,
    DEPLOYMENT, JOB, LEASE, CRD,
)  # fmt: skip

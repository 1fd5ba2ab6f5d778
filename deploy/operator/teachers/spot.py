"""Fields of pods that may run on spot machines."""

from __future__ import annotations

from typing import Final

from ....mesh.kubernetes.resources import Object
from ..templates import unreachable_tolerations

#: Taints and labels of spot machines.
_SPOT_TAINTS: Final = (
    ("cloud.google.com/gke-spot", "true"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
    ("spot", None),
)
_SPOT_LABELS: Final = (
    ("cloud.google.com/gke-spot", "true"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
    ("eks.amazonaws.com/capacityType", "SPOT"),
    ("karpenter.sh/capacity-type", "spot"),
)
#: Pods are moved from an unreachable machine after so many seconds.
_UNREACHABLE_S: Final = 10


def spot_fields() -> Object:
    """Return tolerations and affinity of a pod spec."""
    tolerations: list[Object] = [
        {"key": key, "operator": "Exists", "effect": "NoSchedule"}
        if value is None
        else {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}
        for key, value in _SPOT_TAINTS
    ]
    tolerations += unreachable_tolerations(_UNREACHABLE_S)
    preferred = [
        {
            "weight": 100,
            "preference": {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]},
        }
        for key, value in _SPOT_LABELS
    ]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    return {"tolerations": tolerations, "affinity": affinity}

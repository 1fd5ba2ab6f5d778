"""Which kinds the emulator knows: those of a fresh server, and those of definitions it is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edl.mesh.kubernetes import resources
from edl.mesh.kubernetes.resources import Kind


@dataclass(frozen=True, slots=True)
class Known:
    """One kind, and how the server treats it.

    Attributes:
        kind: its names.
        status: it has the subresource status, so what is written to the object leaves it alone.
        scale: dotted paths of `specReplicasPath` and so on; None: it cannot be scaled.
        schema: of a definition; None: taken as it comes.
        names: short names, for discovery.
    """

    kind: Kind
    status: bool = False
    scale: Mapping[str, str] | None = None
    schema: Mapping[str, Any] | None = None
    names: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """Its API group; empty: the core."""
        return self.kind.api_version.rpartition("/")[0]


_DEPLOYMENT_SCALE = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
}
_WITH_STATUS = (resources.POD, resources.SERVICE, resources.NODE, resources.JOB, resources.CRD)


def fresh() -> list[Known]:
    """What a server knows before any definition is installed."""
    found = [
        Known(kind, kind in _WITH_STATUS)
        for kind in resources.KINDS
        if kind.api_version != resources.API_VERSION and kind != resources.DEPLOYMENT
    ]
    found.append(Known(resources.DEPLOYMENT, True, _DEPLOYMENT_SCALE))
    found.append(Known(Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims"), True))
    found.append(Known(Kind("v1", "ServiceAccount", "serviceaccounts")))
    return found


def defined(crd: Mapping[str, Any]) -> list[Known]:
    """The kinds that a CustomResourceDefinition brings."""
    spec, found = crd["spec"], []
    for version in spec["versions"]:
        subresources = version.get("subresources", {})
        kind = Kind(
            f"{spec['group']}/{version['name']}",
            spec["names"]["kind"],
            spec["names"]["plural"],
            spec["scope"] == "Namespaced",
        )
        found.append(
            Known(
                kind,
                "status" in subresources,
                subresources.get("scale"),
                version["schema"]["openAPIV3Schema"],
                tuple(spec["names"].get("shortNames", ())),
            )
        )
    return found

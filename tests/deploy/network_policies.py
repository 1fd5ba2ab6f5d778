"""NetworkPolicies as a cluster's network reads them: may this pod open that connection?"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from edl.tests.deploy.kubernetes import NAMESPACE, Object, Pod, of_kind, selects

_NAMESPACE_NAME = "kubernetes.io/metadata.name"


@dataclass(frozen=True)
class Place:
    """One end of a connection.

    Attributes:
        pod: of the mesh or of another namespace; None: a machine outside of the cluster.
        namespace: of the pod.
        address: of a machine.
    """

    pod: Pod | None = None
    namespace: str = NAMESPACE
    address: str = "10.1.2.3"


def allowed(
    objects: Iterable[Object], start: Place, end: Place, port: int, protocol: str = "TCP"
) -> bool:
    """Whether every policy of both ends' namespace lets it pass; others have none."""
    policies = of_kind(objects, "NetworkPolicy")
    return _passes(policies, "egress", "to", start, end, end, port, protocol) and _passes(
        policies, "ingress", "from", end, start, end, port, protocol
    )


def _passes(
    policies: list[Object],
    direction: str,
    peers: str,
    subject: Place,
    peer: Place,
    server: Place,
    port: int,
    protocol: str,
) -> bool:
    if subject.pod is None or subject.namespace != NAMESPACE:
        return True
    isolated = False
    for policy in policies:
        spec = policy["spec"]
        if direction.capitalize() not in spec["policyTypes"]:
            continue
        if not selects(spec["podSelector"], subject.pod.labels):
            continue
        isolated = True
        for rule in spec.get(direction, ()):
            meant = peers not in rule or any(_is(one, peer) for one in rule[peers])
            if meant and _port(rule, server, port, protocol):
                return True
    return not isolated


def _is(selector: Mapping[str, Any], peer: Place) -> bool:
    if "ipBlock" in selector:
        block = selector["ipBlock"]
        address = ipaddress.ip_address(peer.address)
        excepted = any(address in ipaddress.ip_network(one) for one in block.get("except", ()))
        # Of pods' addresses networks differ in what they do: here a block is for machines alone.
        return peer.pod is None and address in ipaddress.ip_network(block["cidr"]) and not excepted
    if peer.pod is None:
        return False
    if "namespaceSelector" in selector:
        if not selects(selector["namespaceSelector"], {_NAMESPACE_NAME: peer.namespace}):
            return False
    elif peer.namespace != NAMESPACE:
        return False
    return selects(selector.get("podSelector", {}), peer.pod.labels)


def _port(rule: Mapping[str, Any], server: Place, port: int, protocol: str) -> bool:
    if "ports" not in rule:
        return True
    for one in rule["ports"]:
        first = one["port"]
        if isinstance(first, str):
            first = server.pod.port(first) if server.pod else None
        if first is None or one["protocol"] != protocol:
            continue
        if first <= port <= one.get("endPort", first):
            return True
    return False

"""Who may talk to whom in `deploy/kubernetes/`: each connection that a mesh needs, and no other."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from edl.tests.deploy.kubernetes import (
    COMPONENT,
    NAMESPACE,
    Object,
    Pod,
    build,
    of_kind,
    pods,
    selects,
)

pytestmark = pytest.mark.system

_NAMESPACE_NAME = "kubernetes.io/metadata.name"


@dataclass(frozen=True)
class Endpoint:
    """One end of a connection: a pod, or a machine outside of the cluster."""

    pod: Pod | None = None
    namespace: str = NAMESPACE
    address: str = "10.1.2.3"


def allowed(
    objects: Iterable[Object], start: Endpoint, end: Endpoint, port: int, protocol: str = "TCP"
) -> bool:
    """Whether the policies let a connection pass, as a cluster's network reads them."""
    policies = of_kind(objects, "NetworkPolicy")
    return _passes(policies, "egress", "to", start, end, end, port, protocol) and _passes(
        policies, "ingress", "from", end, start, end, port, protocol
    )


def _passes(
    policies: list[Object],
    direction: str,
    peers: str,
    subject: Endpoint,
    peer: Endpoint,
    server: Endpoint,
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


def _is(selector: Mapping[str, Any], peer: Endpoint) -> bool:
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


def _port(rule: Mapping[str, Any], server: Endpoint, port: int, protocol: str) -> bool:
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


MESH = ("coordinator", "teacher", "student", "redis", "sentinel", "operator", "shell")
#: From whom to whom, at the port of which name. Whatever is not here must not pass.
NEEDED = {
    *((one, "redis", "redis") for one in MESH),
    *((one, "sentinel", "sentinel") for one in MESH),
    ("student", "teacher", "grpc"),
    ("student", "teacher", "http"),
    ("coordinator", "teacher", "grpc"),  # probes
    ("student", "coordinator", "grpc"),
    ("coordinator", "coordinator", "grpc"),  # `edl status` in the pod of one
    ("operator", "coordinator", "grpc"),
    *(("shell", one, port) for one, port in
      (("coordinator", "grpc"), ("teacher", "grpc"), ("teacher", "http"))),
    # A client may ask teachers, and the operator is one.
    ("operator", "teacher", "grpc"),
    ("operator", "teacher", "http"),
    ("prometheus", "coordinator", "metrics"),
    ("prometheus", "teacher", "metrics"),
    ("prometheus", "operator", "metrics"),
    ("keda", "coordinator", "metrics"),
}  # fmt: skip
OUTSIDE = "93.184.216.34"


def named_ports(pod: Pod) -> Iterator[tuple[str, int]]:
    for container in pod.containers:
        for port in container.get("ports", ()):
            yield port["name"], port["containerPort"]


def member(objects: tuple[Object, ...], component: str) -> Pod:
    return next(pod for pod in pods(objects) if pod.labels[COMPONENT] == component)


@pytest.fixture(scope="module")
def whole() -> tuple[Object, ...]:
    return build("whole")


@pytest.fixture(scope="module")
def endpoints(whole: tuple[Object, ...]) -> dict[str, Endpoint]:
    """One of each kind of pod; a shell of an operator's; and what is not of the mesh."""
    of_mesh = {name: Endpoint(member(whole, name)) for name in MESH if name != "shell"}
    bare: Object = {"containers": []}
    return {
        **of_mesh,
        "shell": Endpoint(Pod("shell", {"edl-dist.io/client": "true"}, bare)),
        "stranger": Endpoint(Pod("of the same namespace", {}, bare)),
        "prometheus": Endpoint(Pod("prometheus", {}, bare), "monitoring"),
        "keda": Endpoint(Pod("keda-operator", {}, bare), "keda"),
        "other": Endpoint(Pod("of another namespace", {COMPONENT: "student"}, bare), "default"),
        "machine": Endpoint(address=OUTSIDE),
    }


def test_only_the_connections_of_a_mesh_are_allowed(
    whole: tuple[Object, ...], endpoints: dict[str, Endpoint]
) -> None:
    passing = {
        (start, end, port)
        for start in endpoints
        for end in MESH
        if (pod := endpoints[end].pod) is not None
        for port, number in named_ports(pod)
        if allowed(whole, endpoints[start], endpoints[end], number)
    }
    assert passing == NEEDED, (passing - NEEDED, NEEDED - passing)


def test_ranks_of_students_reach_each_other_at_any_high_port(
    whole: tuple[Object, ...], endpoints: dict[str, Endpoint]
) -> None:
    for port in (1024, 40000, 65535):
        for start in endpoints:
            passes = allowed(whole, endpoints[start], endpoints["student"], port)
            assert passes == (start == "student"), (start, port)
    assert not allowed(whole, endpoints["student"], endpoints["student"], 22)


def test_all_pods_reach_the_clusters_dns_only(
    whole: tuple[Object, ...], endpoints: dict[str, Endpoint]
) -> None:
    bare: Object = {"containers": []}
    dns = Endpoint(Pod("coredns", {"k8s-app": "kube-dns"}, bare), "kube-system")
    others = Endpoint(Pod("etcd", {}, bare), "kube-system")
    cache = Endpoint(address="169.254.20.10")
    for name in (*MESH, "stranger"):
        for protocol in ("UDP", "TCP"):
            assert allowed(whole, endpoints[name], dns, 53, protocol), name
            assert allowed(whole, endpoints[name], cache, 53, protocol), name
        assert not allowed(whole, endpoints[name], dns, 8080), name
        assert not allowed(whole, endpoints[name], others, 53), name


def test_only_the_operator_reaches_an_api_server_and_none_the_metadata_of_the_cloud(
    whole: tuple[Object, ...], endpoints: dict[str, Endpoint]
) -> None:
    server, metadata = Endpoint(address="10.96.0.1"), Endpoint(address="169.254.169.254")
    for name in MESH:
        for port in (443, 6443):
            assert allowed(whole, endpoints[name], server, port) == (name == "operator"), name
        for port in (80, 443):
            assert not allowed(whole, endpoints[name], metadata, port), name
        assert not allowed(whole, endpoints[name], endpoints["machine"], 80), name


def test_members_reach_a_managed_redis_at_its_port_only(
    endpoints: dict[str, Endpoint],
) -> None:
    objects = build("elsewhere")
    for name in ("coordinator", "teacher", "student", "operator"):
        start = Endpoint(member(objects, name))
        assert allowed(objects, start, endpoints["machine"], 6379), name
        assert not allowed(objects, start, endpoints["machine"], 6380), name
        assert not allowed(objects, start, Endpoint(address="169.254.169.254"), 6379), name
    assert not {"redis", "sentinel"} & {pod.labels[COMPONENT] for pod in pods(objects)}


@pytest.mark.parametrize("name", ["base", "dev", "gpu", "spot"])
def test_without_monitoring_metrics_are_not_reachable(
    name: str, endpoints: dict[str, Endpoint]
) -> None:
    objects = build(name)
    for component in ("coordinator", "teacher"):
        end = Endpoint(member(objects, component))
        assert end.pod is not None
        number = end.pod.port("metrics")
        assert number is not None
        for start in endpoints.values():
            assert not allowed(objects, start, end, number)


def test_a_policy_denies_what_no_other_allows(whole: tuple[Object, ...]) -> None:
    denying = [
        one["spec"]
        for one in of_kind(whole, "NetworkPolicy")
        if one["spec"]["podSelector"] == {} and not {"ingress", "egress"} & set(one["spec"])
    ]
    assert denying == [{"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}]
    assert {one["metadata"]["namespace"] for one in of_kind(whole, "NetworkPolicy")} == {NAMESPACE}

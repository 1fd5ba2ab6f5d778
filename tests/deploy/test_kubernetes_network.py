"""Who may talk to whom in `deploy/kubernetes/`: each connection that a mesh needs, and no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edl.tests.deploy.kubernetes import COMPONENT, NAMESPACE, Object, Pod, build, of_kind, pods
from edl.tests.deploy.network_policies import Place, allowed

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
def places(whole: tuple[Object, ...]) -> dict[str, Place]:
    """One of each kind of pod; a shell of an operator's; and what is not of the mesh."""
    of_mesh = {name: Place(member(whole, name)) for name in MESH if name != "shell"}
    bare: Object = {"containers": []}
    return {
        **of_mesh,
        "shell": Place(Pod("shell", {"edl-dist.io/client": "true"}, bare)),
        "stranger": Place(Pod("of the same namespace", {}, bare)),
        "prometheus": Place(Pod("prometheus", {}, bare), "monitoring"),
        "keda": Place(Pod("keda-operator", {}, bare), "keda"),
        "other": Place(Pod("of another namespace", {COMPONENT: "student"}, bare), "default"),
        "machine": Place(address=OUTSIDE),
    }


def test_the_connections_of_a_mesh_pass_and_no_others(
    whole: tuple[Object, ...], places: dict[str, Place]
) -> None:
    passing = {
        (start, end, port)
        for start in places
        for end in MESH
        if (pod := places[end].pod) is not None
        for port, number in named_ports(pod)
        if allowed(whole, places[start], places[end], number)
    }
    assert passing == NEEDED, (passing - NEEDED, NEEDED - passing)


def test_ranks_of_students_reach_each_other_at_any_port_that_they_choose(
    whole: tuple[Object, ...], places: dict[str, Place]
) -> None:
    for port in (1024, 40000, 65535):
        for start in places:
            passes = allowed(whole, places[start], places["student"], port)
            assert passes == (start == "student"), (start, port)
    assert not allowed(whole, places["student"], places["student"], 22)


def test_everybody_asks_the_clusters_dns_and_nothing_else_there(
    whole: tuple[Object, ...], places: dict[str, Place]
) -> None:
    bare: Object = {"containers": []}
    dns = Place(Pod("coredns", {"k8s-app": "kube-dns"}, bare), "kube-system")
    others = Place(Pod("etcd", {}, bare), "kube-system")
    cache = Place(address="169.254.20.10")
    for name in (*MESH, "stranger"):
        for protocol in ("UDP", "TCP"):
            assert allowed(whole, places[name], dns, 53, protocol), name
            assert allowed(whole, places[name], cache, 53, protocol), name
        assert not allowed(whole, places[name], dns, 8080), name
        assert not allowed(whole, places[name], others, 53), name


def test_only_the_operator_reaches_an_api_server_and_nobody_the_clouds_own_secrets(
    whole: tuple[Object, ...], places: dict[str, Place]
) -> None:
    server, metadata = Place(address="10.96.0.1"), Place(address="169.254.169.254")
    for name in MESH:
        for port in (443, 6443):
            assert allowed(whole, places[name], server, port) == (name == "operator"), name
        for port in (80, 443):
            assert not allowed(whole, places[name], metadata, port), name
        assert not allowed(whole, places[name], places["machine"], 80), name


def test_a_managed_redis_is_reached_by_members_at_its_port_alone(places: dict[str, Place]) -> None:
    objects = build("elsewhere")
    for name in ("coordinator", "teacher", "student", "operator"):
        start = Place(member(objects, name))
        assert allowed(objects, start, places["machine"], 6379), name
        assert not allowed(objects, start, places["machine"], 6380), name
        assert not allowed(objects, start, Place(address="169.254.169.254"), 6379), name
    assert not {"redis", "sentinel"} & {pod.labels[COMPONENT] for pod in pods(objects)}


@pytest.mark.parametrize("name", ["base", "dev", "gpu", "spot"])
def test_without_monitoring_nobody_reads_metrics(name: str, places: dict[str, Place]) -> None:
    objects = build(name)
    for component in ("coordinator", "teacher"):
        end = Place(member(objects, component))
        assert end.pod is not None
        number = end.pod.port("metrics")
        assert number is not None
        for start in places.values():
            assert not allowed(objects, start, end, number)


def test_every_pod_is_under_a_policy_in_both_directions(whole: tuple[Object, ...]) -> None:
    denying = [
        one["spec"]
        for one in of_kind(whole, "NetworkPolicy")
        if one["spec"]["podSelector"] == {} and not {"ingress", "egress"} & set(one["spec"])
    ]
    assert denying == [{"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}]
    assert {one["metadata"]["namespace"] for one in of_kind(whole, "NetworkPolicy")} == {NAMESPACE}

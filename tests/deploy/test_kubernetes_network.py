"""Who may talk to whom in `deploy/kubernetes/`: each connection that a mesh needs, and no other."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from edl.tests.deploy.kubernetes import (
    COMPONENT,
    KUBERNETES,
    NAMESPACE,
    Object,
    Pod,
    build,
    environment,
    named,
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
    specs = [
        policy["spec"]
        for policy in policies
        if direction.capitalize() in policy["spec"]["policyTypes"]
        and selects(policy["spec"]["podSelector"], subject.pod.labels)
    ]
    rules = [rule for spec in specs for rule in spec.get(direction, ())]
    return not specs or any(
        (peers not in rule or any(_is(one, peer) for one in rule[peers]))
        and _port(rule, server, port, protocol)
        for rule in rules
    )


def _is(selector: Mapping[str, Any], peer: Endpoint) -> bool:
    if "ipBlock" in selector:
        block = selector["ipBlock"]
        address = ipaddress.ip_address(peer.address)
        excepted = any(address in ipaddress.ip_network(one) for one in block.get("except", ()))
        # Of pods' addresses networks differ in what they do: here a block is for machines alone.
        return peer.pod is None and address in ipaddress.ip_network(block["cidr"]) and not excepted
    if peer.pod is None:
        return False
    own = {"matchLabels": {_NAMESPACE_NAME: NAMESPACE}}
    namespace = {_NAMESPACE_NAME: peer.namespace}
    return selects(selector.get("namespaceSelector", own), namespace) and selects(
        selector.get("podSelector", {}), peer.pod.labels
    )


def _port(rule: Mapping[str, Any], server: Endpoint, port: int, protocol: str) -> bool:
    for one in rule.get("ports", ()):
        first = one["port"]
        if isinstance(first, str):
            first = server.pod.port(first) if server.pod else None
        there = first is not None and first <= port <= one.get("endPort", first)
        if there and one["protocol"] == protocol:
            return True
    return "ports" not in rule


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


def test_members_reach_a_managed_redis_at_its_port_only(endpoints: dict[str, Endpoint]) -> None:
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


def test_pods_without_a_policy_of_their_own_are_isolated(
    whole: tuple[Object, ...], endpoints: dict[str, Endpoint]
) -> None:
    stranger = endpoints["stranger"]
    for outside in (endpoints["other"], endpoints["machine"]):
        assert not allowed(whole, outside, stranger, 8080)
        assert not allowed(whole, stranger, outside, 443)
    assert {one["metadata"]["namespace"] for one in of_kind(whole, "NetworkPolicy")} == {NAMESPACE}


#: Of what each member needs of its certificate to be served, and to be believed.
USES = {
    "coordinator": {"server auth", "client auth"},  # it probes teachers
    "teacher": {"server auth"},
    "student": {"client auth"},
    "operator": {"client auth"},
    "redis": {"server auth", "client auth"},
    "sentinel": {"server auth", "client auth"},
}
ROLES = {"coordinator": "viewer:", "student": "student:ctr", "operator": "viewer:"}


def certificate_of(pod: Pod, objects: tuple[Object, ...]) -> Object:
    """The Certificate whose Secret is mounted where the TLS options of a pod point."""
    (secret,) = (
        volume["secret"]["secretName"] for volume in pod.spec["volumes"] if volume["name"] == "tls"
    )
    (found,) = (
        one["spec"]
        for one in of_kind(objects, "Certificate")
        if one["spec"]["secretName"] == secret
    )
    return found  # type: ignore[no-any-return]


def test_each_member_has_a_certificate_for_what_it_does(whole: tuple[Object, ...]) -> None:
    used = {"edl-ca"}  # its key is for the issuer alone
    seen = set()
    for pod in pods(whole):
        component = pod.labels[COMPONENT]
        if component == "example-model":
            continue
        seen.add(component)
        spec = certificate_of(pod, whole)
        used.add(spec["secretName"])
        assert {*spec["usages"]} - {"digital signature"} == USES[component], pod.owner
        assert spec["commonName"].startswith(ROLES.get(component, "")), pod.owner
        assert not spec["commonName"].startswith("admin"), pod.owner
    assert seen == set(USES)
    specs = [one["spec"] for one in of_kind(whole, "Certificate")]
    assert {spec["secretName"] for spec in specs} == used
    names = [name for spec in specs for name in spec.get("dnsNames", ())]
    assert len(names) == len({*names}), "a certificate holds for the name of another kind"


@pytest.mark.parametrize("component", ["coordinator", "teacher"])
def test_the_name_that_a_pod_tells_others_is_in_its_certificate_and_in_the_dns(
    component: str, whole: tuple[Object, ...]
) -> None:
    pod = next(one for one in pods(whole) if one.labels[COMPONENT] == component)
    container = pod.main
    told = environment(pod, container, whole)
    assert told["EDL_ADVERTISE"] in certificate_of(pod, whole)["dnsNames"]
    star, service, namespace, suffix = told["EDL_ADVERTISE"].split(".")
    assert (star, namespace, suffix) == ("*", "edl-dist", "svc")
    found = named(whole, "Service", service)["spec"]
    assert found["clusterIP"] == "None", "else its pods have no names"
    assert found["publishNotReadyAddresses"] is True
    assert found["selector"].items() <= pod.labels.items()
    (mount,) = (one for one in container["volumeMounts"] if one["name"] == "tls")
    for option in ("EDL_TLS_CERT", "EDL_TLS_KEY", "EDL_TLS_CA"):
        folder, _, file = told[option].rpartition("/")
        assert folder == mount["mountPath"]
        assert file in ("tls.crt", "tls.key", "ca.crt")


def test_redis_and_sentinels_have_the_names_by_which_they_are_dialled(
    whole: tuple[Object, ...],
) -> None:
    (pod,) = (one for one in pods(whole) if one.labels[COMPONENT] == "redis")
    text = (KUBERNETES / "base" / "redis" / "place.sh").read_text()
    dialled = set(re.findall(r"edl-[a-z]+-\d\.edl-[a-z]+", text))
    assert len(dialled) == 6
    assert set(certificate_of(pod, whole)["dnsNames"]) == dialled
    for pod in pods(whole):
        for container in pod.containers:
            told = environment(pod, container, whole)
            if "REDIS_TLS" in told:
                assert told["REDIS_TLS"] == "yes"
            for url in (told.get("EDL_REDIS"), told.get("EDL_COORDINATOR")):
                if url:
                    assert url.startswith("rediss+sentinel://")
                    assert "ssl_ca_certs=/etc/edl/tls/ca.crt" in url


def test_a_student_shows_the_certificate_that_its_job_file_reads(whole: tuple[Object, ...]) -> None:
    jobs = [pod for pod in pods(whole) if pod.labels[COMPONENT] == "student"]
    assert len(jobs) == 2
    job_file = next(
        one["data"]["student.py"]
        for one in of_kind(whole, "ConfigMap")
        if one["metadata"]["name"].startswith("edl-jobs-")
    )
    wanted = {*re.findall(r"\{SECRETS\}/([a-z.]+)", job_file)}
    assert len(wanted) == 3
    for pod in jobs:
        container = pod.main
        assert container["args"][2] == "/jobs/student.py"
        told = environment(pod, container, whole)
        (mount,) = (one for one in container["volumeMounts"] if one["mountPath"] == told["SECRETS"])
        (volume,) = (one for one in pod.spec["volumes"] if one["name"] == mount["name"])
        items = {item["path"]: item["key"] for item in volume["secret"]["items"]}
        assert wanted <= set(items), pod.owner
        assert {items[one].rpartition(".")[2] for one in wanted} == {"crt", "key"}

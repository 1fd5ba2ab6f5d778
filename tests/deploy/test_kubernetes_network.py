"""Who may talk to whom in `deploy/kubernetes/`: each connection that a mesh needs, and no other."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
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
    specs = [policy["spec"] for policy in of_kind(objects, "NetworkPolicy")]

    def passes(direction: str, peers: str, subject: Endpoint, peer: Endpoint) -> bool:
        if subject.pod is None or subject.namespace != NAMESPACE:
            return True
        holding = [
            spec
            for spec in specs
            if direction.capitalize() in spec["policyTypes"]
            and selects(spec["podSelector"], subject.pod.labels)
        ]
        rules = [rule for spec in holding for rule in spec.get(direction, ())]
        return not holding or any(
            (peers not in rule or any(_is(one, peer) for one in rule[peers]))
            and (
                "ports" not in rule
                or any(_takes(one, end, port, protocol) for one in rule["ports"])
            )
            for rule in rules
        )

    return passes("egress", "to", start, end) and passes("ingress", "from", end, start)


def _is(selector: Mapping[str, Any], peer: Endpoint) -> bool:
    if block := selector.get("ipBlock"):
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


def _takes(one: Mapping[str, Any], server: Endpoint, port: int, protocol: str) -> bool:
    """Whether a port of a rule is this one; some have names, some are the first of several."""
    first = one["port"]
    if isinstance(first, str):
        first = server.pod.ports.get(first) if server.pod else None
    fits: bool = first is not None and first <= port <= one.get("endPort", first)
    return fits and one["protocol"] == protocol


MESH = ("coordinator", "teacher", "student", "redis", "sentinel", "operator", "shell")
#: Those in the mesh's namespace, for which its policies hold.
OURS = {*MESH, "stranger"}
#: From whom to whom, at the port of which name or number. Whatever is not here must not pass.
NEEDED: set[tuple[str, str, str | int]] = {
    *((one, end, end) for one in MESH for end in ("redis", "sentinel")),
    *((one, end, 53) for one in OURS for end in ("dns", "dns-cache")),
    # A client may ask teachers, and the operator is one.
    *(
        (one, "teacher", port)
        for one in ("student", "shell", "operator")
        for port in ("grpc", "http", "transport")
    ),
    ("student", "student", 1024),  # ranks, at any high port
    ("student", "student", 65535),
    ("coordinator", "teacher", "grpc"),  # probes
    ("student", "coordinator", "grpc"),
    ("coordinator", "coordinator", "grpc"),  # `edl status` in the pod of one
    ("operator", "coordinator", "grpc"),
    *(("operator", end, port) for end in ("machine", "api-server") for port in (443, 6443)),
    ("shell", "coordinator", "grpc"),
    *(("prometheus", end, "metrics") for end in ("coordinator", "teacher", "operator")),
    ("keda", "coordinator", "metrics"),
}
#: What is asked for at ports that have no names.
NUMBERS = {
    "student": (22, 1024, 65535),
    "dns": (53, 8080),
    "etcd": (53,),
    "dns-cache": (53, 80),
    "machine": (80, 443, 6443, 6379),
    "api-server": (443, 6443),
    "metadata": (80, 443),
    "stranger": (8080,),
}


def member(objects: tuple[Object, ...], component: str) -> Pod:
    return next(pod for pod in pods(objects) if pod.labels[COMPONENT] == component)


@pytest.fixture(scope="module")
def whole() -> tuple[Object, ...]:
    return build("whole")


@pytest.fixture(scope="module")
def endpoints(whole: tuple[Object, ...]) -> dict[str, Endpoint]:
    """One of each kind of pod; a shell of an operator's; and what is not of the mesh."""

    def bare(namespace: str = NAMESPACE, labels: Mapping[str, str] = {}) -> Endpoint:
        return Endpoint(Pod("bare", labels, {"containers": []}), namespace)

    return {
        **{name: Endpoint(member(whole, name)) for name in MESH if name != "shell"},
        "shell": bare(labels={"edl-dist.io/client": "true"}),
        "stranger": bare(),
        "prometheus": bare("monitoring"),
        "keda": bare("keda"),
        "other": bare("default", {COMPONENT: "student"}),
        "dns": bare("kube-system", {"k8s-app": "kube-dns"}),
        "etcd": bare("kube-system"),
        "dns-cache": Endpoint(address="169.254.20.10"),
        "machine": Endpoint(address="93.184.216.34"),
        "api-server": Endpoint(address="10.96.0.1"),
        "metadata": Endpoint(address="169.254.169.254"),
    }


def ports_of(name: str, end: Endpoint) -> list[tuple[str | int, int]]:
    named = end.pod.ports if end.pod else {}
    return [*named.items(), *((number, number) for number in NUMBERS.get(name, ()))]


def test_only_the_connections_of_a_mesh_are_allowed(
    whole: tuple[Object, ...], endpoints: dict[str, Endpoint]
) -> None:
    passing = {
        (start, name, port)
        for name, end in endpoints.items()
        for port, number in ports_of(name, end)
        for start in endpoints
        if {start, name} & OURS and allowed(whole, endpoints[start], end, number)
    }
    assert passing == NEEDED, (passing - NEEDED, NEEDED - passing)
    for name in OURS:
        assert allowed(whole, endpoints[name], endpoints["dns"], 53, "UDP"), name
        assert allowed(whole, endpoints[name], endpoints["dns-cache"], 53, "UDP"), name
    assert {one["metadata"]["namespace"] for one in of_kind(whole, "NetworkPolicy")} == {NAMESPACE}


def test_members_reach_a_managed_redis_at_its_port_only(endpoints: dict[str, Endpoint]) -> None:
    objects = build("elsewhere")
    for name in ("coordinator", "teacher", "student", "operator", "shell"):
        start = endpoints["shell"] if name == "shell" else Endpoint(member(objects, name))
        assert allowed(objects, start, endpoints["machine"], 6379), name
        assert not allowed(objects, start, endpoints["machine"], 6380), name
        assert not allowed(objects, start, endpoints["metadata"], 6379), name
    assert not {"redis", "sentinel"} & {pod.labels[COMPONENT] for pod in pods(objects)}


@pytest.mark.parametrize("name", ["base", "dev", "gpu", "spot"])
def test_without_monitoring_metrics_are_not_reachable(
    name: str, endpoints: dict[str, Endpoint]
) -> None:
    objects = build(name)
    for component in ("coordinator", "teacher"):
        pod = member(objects, component)
        for start in endpoints.values():
            assert not allowed(objects, start, Endpoint(pod), pod.ports["metrics"])


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
    volumes = {one["name"]: one for one in pod.spec["volumes"]}
    secret = volumes["tls"]["secret"]["secretName"]
    specs: list[Object] = [one["spec"] for one in of_kind(objects, "Certificate")]
    (found,) = (spec for spec in specs if spec["secretName"] == secret)
    return found


def test_each_member_has_a_certificate_for_what_it_does(whole: tuple[Object, ...]) -> None:
    used = {"edl-ca"}  # its key is for the issuer alone
    assert {pod.labels[COMPONENT] for pod in pods(whole)} == {*USES, "example-model"}
    for pod in pods(whole):
        component = pod.labels[COMPONENT]
        if component != "example-model":
            spec = certificate_of(pod, whole)
            used.add(spec["secretName"])
            assert {*spec["usages"]} - {"digital signature"} == USES[component], pod.owner
            assert spec["commonName"].startswith(ROLES.get(component, "")), pod.owner
            assert not spec["commonName"].startswith("admin"), pod.owner
    specs = [one["spec"] for one in of_kind(whole, "Certificate")]
    assert {spec["secretName"] for spec in specs} == used
    names = [name for spec in specs for name in spec.get("dnsNames", ())]
    assert len(names) == len({*names}), "a certificate holds for the name of another kind"


@pytest.mark.parametrize("component", ["coordinator", "teacher"])
def test_the_name_that_a_pod_tells_others_is_in_its_certificate_and_in_the_dns(
    component: str, whole: tuple[Object, ...]
) -> None:
    pod = member(whole, component)
    told = environment(pod, pod.main, whole)
    assert told["EDL_ADVERTISE"] in certificate_of(pod, whole)["dnsNames"]
    star, service, namespace, suffix = told["EDL_ADVERTISE"].split(".")
    assert (star, namespace, suffix) == ("*", "edl-dist", "svc")
    found = named(whole, "Service", service)["spec"]
    assert found["clusterIP"] == "None", "else its pods have no names"
    assert found["publishNotReadyAddresses"] is True
    assert found["selector"].items() <= pod.labels.items()
    (mount,) = (one for one in pod.main["volumeMounts"] if one["name"] == "tls")
    for option in ("EDL_TLS_CERT", "EDL_TLS_KEY", "EDL_TLS_CA"):
        folder, _, file = told[option].rpartition("/")
        assert folder == mount["mountPath"]
        assert file in ("tls.crt", "tls.key", "ca.crt")


def test_redis_and_sentinels_have_the_names_by_which_they_are_dialled(
    whole: tuple[Object, ...],
) -> None:
    text = (KUBERNETES / "base" / "redis" / "servers.sh").read_text()
    dialled = set(re.findall(r"edl-[a-z]+-\d\.edl-[a-z]+", text))
    assert len(dialled) == 6
    assert set(certificate_of(member(whole, "redis"), whole)["dnsNames"]) == dialled
    for pod in pods(whole):
        for container in pod.containers:
            told = environment(pod, container, whole)
            assert told.get("REDIS_TLS", "yes") == "yes"
            for url in filter(None, map(told.get, ("EDL_REDIS", "EDL_COORDINATOR"))):
                assert url.startswith("rediss+sentinel://")
                assert "ssl_ca_certs=/etc/edl/tls/ca.crt" in url


def test_a_student_shows_the_certificate_that_its_job_file_reads(whole: tuple[Object, ...]) -> None:
    jobs = [pod for pod in pods(whole) if pod.labels[COMPONENT] == "student"]
    assert len(jobs) == 2
    maps = {one["metadata"]["name"]: one["data"] for one in of_kind(whole, "ConfigMap")}
    (job_files,) = (data for name, data in maps.items() if name.startswith("edl-jobs-"))
    wanted = {*re.findall(r"\{SECRETS\}/([a-z.]+)", job_files["student.py"])}
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

"""Certificates of `deploy/kubernetes/`: they are mounted where flags name them, and names fit."""

from __future__ import annotations

import re

import pytest

from edl.tests.deploy.kubernetes import (
    COMPONENT,
    KUBERNETES,
    Object,
    Pod,
    build,
    environment,
    named,
    of_kind,
    pods,
)

pytestmark = pytest.mark.system

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


@pytest.fixture(scope="module")
def whole() -> tuple[Object, ...]:
    return build("whole")


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
    seen = set()
    for pod in pods(whole):
        component = pod.labels[COMPONENT]
        if component == "example-model":
            continue
        seen.add(component)
        spec = certificate_of(pod, whole)
        assert {*spec["usages"]} - {"digital signature"} == USES[component], pod.owner
        assert spec["commonName"].startswith(ROLES.get(component, "")), pod.owner
        assert not spec["commonName"].startswith("admin"), pod.owner
    assert seen == set(USES)
    used = {
        certificate_of(pod, whole)["secretName"]
        for pod in pods(whole)
        if pod.labels[COMPONENT] in USES
    }
    unused = {one["spec"]["secretName"] for one in of_kind(whole, "Certificate")} - used
    assert unused == {"edl-ca"}, "its key is for the issuer alone"


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


def test_no_certificate_of_one_kind_holds_for_the_name_of_another(
    whole: tuple[Object, ...],
) -> None:
    names = [
        name for one in of_kind(whole, "Certificate") for name in one["spec"].get("dnsNames", ())
    ]
    assert len(names) == len({*names})

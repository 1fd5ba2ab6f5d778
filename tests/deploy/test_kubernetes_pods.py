"""What runs in the pods of `deploy/kubernetes/`: command lines, images, rights, room, ends."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

import edl
from edl.coordinator.registry.redis_url import parse
from edl.metrics import LIVE, READY
from edl.supervise import start
from edl.tests.deploy import command_lines
from edl.tests.deploy.kubernetes import (
    BUILDS,
    COMPONENT,
    NAMESPACE,
    ROOT,
    Object,
    Pod,
    build,
    environment,
    expanded,
    named,
    of_kind,
    pods,
)
from edl.tests.ground.programs import python
from edl.tests.waiting import DEADLINE_S

pytestmark = pytest.mark.system

IMAGE = "edl-dist"
#: Arguments that name a place which the process writes.
WRITTEN = ("--checkpoint",)
DRAINING = """
import pathlib, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("ready", flush=True)
signal.sigwait({signal.SIGTERM})
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
"""
builds = pytest.mark.parametrize("name", BUILDS)


def entrypoint() -> list[str]:
    """Of the image, without what collects its orphans."""
    text = (ROOT / "deploy" / "containers" / "Containerfile").read_text()
    found = re.search(r"^ENTRYPOINT (\[.*\])$", text, re.MULTILINE)
    assert found
    words: list[str] = json.loads(found[1])
    return words[words.index("--") + 1 :]


def command_of(
    pod: Pod, container: Object, objects: tuple[Object, ...]
) -> tuple[list[str], dict[str, str]]:
    """The words that a container of ours runs, and its variables."""
    variables = environment(pod, container, objects)
    words = [*container.get("command", entrypoint()), *container.get("args", ())]
    return [expanded(word, variables) for word in words], variables


def ours(objects: tuple[Object, ...]) -> list[tuple[Pod, Object]]:
    return [
        (pod, container)
        for pod in pods(objects)
        for container in pod.containers
        if container["image"].partition(":")[0] == IMAGE
    ]


@builds
def test_each_command_line_is_one_that_edl_takes(name: str) -> None:
    objects = build(name)
    checked = 0
    for pod, container in ours(objects):
        argv, variables = command_of(pod, container, objects)
        if not command_lines.is_ours(argv):  # of the example: it is made, and waited for
            assert argv[:3] == ["tini", "--", "sh"], f"{pod.owner} runs {argv}"
            assert name in ("dev", "whole")
            continue
        command_lines.check(argv, variables)
        checked += 1
    assert checked >= 2


@builds
def test_files_of_a_command_are_on_volumes(name: str) -> None:
    objects = build(name)
    for pod, container in ours(objects):
        argv, variables = command_of(pod, container, objects)
        mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
        words = [*argv[1:], *(f"{key}={value}" for key, value in variables.items())]
        for word in words:
            for place in re.findall(r"(?:^|=)(/[^&?,=]+)", word):
                holders = [at for at in mounts if Path(place).is_relative_to(at)]
                assert holders, f"{pod.owner}: {place} is on no volume"
                if word.startswith(WRITTEN):
                    assert not mounts[max(holders, key=len)].get("readOnly"), (pod.owner, place)
        assert "/tmp" in mounts
        assert variables["HOME"] == "/tmp"


@builds
def test_redis_urls_name_existing_users_and_servers(name: str, tmp_path: Path) -> None:
    objects = build(name)
    (tmp_path / "password").write_text("x")
    (tmp_path / "password").chmod(0o440)
    found = 0
    for pod, container in ours(objects):
        variables = environment(pod, container, objects)
        mounted = {one["secret"]["secretName"] for one in pod.spec["volumes"] if "secret" in one}
        for url in filter(None, map(variables.get, ("EDL_REDIS", "EDL_COORDINATOR"))):
            found += 1
            parsed = parse(re.sub(r"=/etc/edl/[^&]+", f"={tmp_path}/password", url))
            if user := parsed.login.get("username"):
                assert user.replace("edl-", "edl-redis-", 1) in mounted, f"{pod.owner} is {user}"
            for host, port in parsed.hosts if name != "elsewhere" else ():
                _check_there(host, port, objects)
    assert found >= 2


def _check_there(host: str, port: int, objects: tuple[Object, ...]) -> None:
    """That a pod is called so by its StatefulSet and its Service."""
    pod, _, service = host.partition(".")
    owner, _, number = pod.rpartition("-")
    made = named(objects, "StatefulSet", owner)["spec"]
    assert (int(number) < made["replicas"], made["serviceName"]) == (True, service)
    assert port in {one["port"] for one in named(objects, "Service", service)["spec"]["ports"]}


@builds
def test_pods_are_restricted_and_say_what_they_need(name: str) -> None:
    """What the profile `restricted` of pod security asks for, and a root that cannot be written."""
    objects = build(name)
    space = named(objects, "Namespace", NAMESPACE)
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for pod in pods(objects):
        token = pod.labels[COMPONENT] == "operator"
        assert pod.spec["automountServiceAccountToken"] is token, pod.owner
        whole = pod.spec["securityContext"]
        assert whole["runAsNonRoot"] is True, pod.owner
        assert whole["runAsUser"] > 0, pod.owner
        assert whole["seccompProfile"] == {"type": "RuntimeDefault"}, pod.owner
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            assert key not in pod.spec, pod.owner
        for container in pod.containers:
            image, _, tag = container["image"].partition(":")
            assert image in (IMAGE, "valkey/valkey"), "of the cluster's default registry"
            assert image != IMAGE or tag.removesuffix("-gpu") == edl.__version__
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, pod.owner
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]), pod.owner
            assert "memory" in container["resources"]["limits"], pod.owner
        for volume in pod.spec["volumes"]:
            assert "hostPath" not in volume, pod.owner
            assert "emptyDir" not in volume or "sizeLimit" in volume["emptyDir"], pod.owner
            if "secret" in volume:  # passwords that everybody may read are refused by us
                assert volume["secret"]["defaultMode"] & 0o007 == 0, pod.owner
    for account in of_kind(objects, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


@builds
def test_probes_ask_the_health_endpoints(name: str) -> None:
    objects = build(name)
    with_tls = bool(of_kind(objects, "Certificate"))
    for pod, container in ours(objects):
        component = pod.labels[COMPONENT]
        if container != pod.main or component not in ("coordinator", "teacher", "operator"):
            continue
        of_http = component == "teacher" and not with_tls
        live, ready = ("/v2/health/live", "/v2/health/ready") if of_http else (LIVE, READY)
        port = "http" if of_http else "metrics"
        # A teacher has started when its self-test is passed; others live before they are ready.
        started = ready if component == "teacher" else live
        probes = {"startupProbe": started, "livenessProbe": live, "readinessProbe": ready}
        for probe, path in probes.items():
            assert container[probe]["httpGet"] == {"path": path, "port": port}, (pod.owner, probe)
        argv, variables = command_of(pod, container, objects)
        values = command_lines.check(argv, variables)
        options = {"grpc": "port", "http": "http", "metrics": "metrics_listen"}
        for named_, option in options.items():
            number = str(values.get(option)).rpartition(":")[2]
            assert number == str(pod.port(named_)), (pod.owner, named_)


@builds
def test_teachers_have_time_to_drain(name: str) -> None:
    objects = build(name)
    for pod, container in ours(objects):
        if container != pod.main or pod.labels[COMPONENT] != "teacher":
            continue
        argv, variables = command_of(pod, container, objects)
        grace_s = command_lines.check(argv, variables)["grace"]
        assert pod.spec["terminationGracePeriodSeconds"] >= grace_s + 10
        shell, flag, script = container["lifecycle"]["preStop"]["exec"]["command"]
        assert (shell, flag) == ("sh", "-c")
        # It says SIGTERM to the first process, which tini passes on, and lasts until that has gone.
        assert shlex.split(script)[:3] == ["kill", "-TERM", "1;"]
        assert "while kill -0 1" in script
        if name in ("spot", "whole"):
            assert grace_s <= 20
            assert pod.spec["terminationGracePeriodSeconds"] <= 30, "the notice of a spot machine"


def test_the_hook_lasts_until_the_first_process_has_gone(tmp_path: Path) -> None:
    """Else Kubernetes's own SIGTERM, a second one, would end a drain at once."""
    teacher = next(pod for pod in pods(build("base")) if pod.labels[COMPONENT] == "teacher")
    *shell, script = teacher.main["lifecycle"]["preStop"]["exec"]["command"]
    # The process ends when the hook has waited for it three times.
    go, waited = tmp_path / "go", tmp_path / "waited"
    sleep = tmp_path / "sleep"
    sleep.write_text(
        f"#!/bin/sh\necho >>{waited}\n[ $(wc -l <{waited}) -lt 3 ] || touch {go}\n"
        "exec /bin/sleep 0.02\n"
    )
    sleep.chmod(0o755)
    process = start(python(DRAINING, go, name="draining"))
    process.expect("ready", DEADLINE_S)
    done = subprocess.run(
        [*shell, re.sub(r" 1\b", f" {process.pid}", script)],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0
    assert len(waited.read_text()) >= 3
    assert process.wait(DEADLINE_S) == 0

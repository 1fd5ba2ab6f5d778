"""Redis with its sentinels as the pods of `deploy/kubernetes/` start it: the very scripts."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from edl.coordinator.embedded import server_program
from edl.coordinator.jobs import open_job_board
from edl.coordinator.registry import connect
from edl.coordinator.store.redis_url import open_client, parse
from edl.mesh.jobs.job_run import TrainingProgress, read_progress
from edl.runtime.supervise import Command, Process, start
from edl.tests.coordinator.conftest import held_port
from edl.tests.deploy import kubernetes, kubernetes_redis_cli
from edl.tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.system

KUBERNETES = kubernetes.KUBERNETES
SCRIPTS = KUBERNETES / "base" / "redis"
SERVERS = 2


@pytest.fixture(scope="module")
def secrets() -> dict[str, dict[str, bytes]]:
    return kubernetes.printed_secrets("ctr", "toys")


@dataclass
class Mesh:
    """Servers and sentinels as pods start them, on ports of their own."""

    folder: Path
    nodes: list[str]
    sentinels: list[str]
    running: dict[str, Process]

    def url(self, user: str, secret: str) -> str:
        password = f"password_file={self.folder / secret / 'password'}"
        return f"redis+sentinel://{user}@{','.join(self.sentinels)}/mesh?{password}"

    def begin(self, node: str, stack: ExitStack) -> None:
        script = "redis.sh" if node in self.nodes else "sentinel.sh"
        data = self.folder / node.replace(":", "-")
        data.mkdir(exist_ok=True)
        environment = {
            "REDIS_TLS": "no",
            "REDIS_NODES": " ".join(self.nodes),
            "SENTINEL_NODES": " ".join(self.sentinels),
            "SELF": node,
            "SECRETS": str(self.folder / "edl-redis-server"),
            "DATA": str(data),
            "SERVER": server_program(),
            "CLI": str(self.folder / "valkey-cli"),
        }
        argv = ("sh", str(SCRIPTS / script))
        process = start(Command(f"{script} {node}", argv, environment, guard=True))
        stack.callback(process.stop, grace_s=1.0)
        self.running[node] = process

    def info(self, node: str) -> dict[str, Any]:
        password = (self.folder / "edl-redis-server" / "sentinel-password").read_text().strip()
        try:
            with client_of(node, username="sentinel", password=password) as client:
                found: dict[str, Any] = client.info("replication")
                return found
        except redis.RedisError:
            return {}

    def masters(self) -> set[str]:
        return {master_of(node).get("ip:port", "") for node in self.sentinels}


def client_of(node: str, **login: Any) -> redis.Redis:
    host, _, port = node.rpartition(":")
    return redis.Redis(host, int(port), decode_responses=True, **login)


def master_of(sentinel: str) -> dict[str, Any]:
    try:
        with client_of(sentinel) as client:
            found = client.sentinel_master("mesh")
    except redis.RedisError:
        return {}
    return {**found, "ip:port": f"{found['ip']}:{found['port']}"}


@contextmanager
def mesh_of(folder: Path, secrets: dict[str, dict[str, bytes]], sentinels: int) -> Iterator[Mesh]:
    for name, values in secrets.items():
        (folder / name).mkdir()
        for key, value in values.items():
            (folder / name / key).write_bytes(value)
            (folder / name / key).chmod(0o440)
    cli = folder / "valkey-cli"
    cli.write_text(f'#!/bin/sh\nexec {sys.executable} -I {kubernetes_redis_cli.__file__} "$@"\n')
    cli.chmod(stat.S_IRWXU)
    with ExitStack() as stack:
        ports = [stack.enter_context(held_port()) for _ in range(SERVERS + sentinels)]
        nodes = [f"127.0.0.1:{port}" for port in ports]
        mesh = Mesh(folder, nodes[:SERVERS], nodes[SERVERS:], {})
        # All at once, as pods are: who looks for a master finds none.
        for node in nodes:
            mesh.begin(node, stack)
        wait_until(lambda: mesh.masters() == {mesh.nodes[0]})
        wait_until(lambda: mesh.info(mesh.nodes[1]).get("master_link_status") == "up")
        # Which is what they hear by INFO, so Redis lets them in.
        wait_until(lambda: all(master_of(one).get("runid") for one in mesh.sentinels))
        yield mesh


def test_pods_that_start_together_agree_on_one_master(
    tmp_path: Path, secrets: dict[str, dict[str, bytes]]
) -> None:
    with mesh_of(tmp_path, secrets, sentinels=1) as mesh:
        with closing(connect(mesh.url("edl-manager", "edl-redis-manager"), DEADLINE_S)) as registry:
            assert registry.time_ms() > 0
        # The operator reads how far a training is by its own URL, which is that of the nodes, too.
        objects = kubernetes.compose(("operator",))
        (pod,) = (one for one in kubernetes.pods(objects) if "edl-operator" in one.owner)
        url = kubernetes.environment(pod, pod.main, objects)["EDL_COORDINATOR"]
        examples = kubernetes.kustomize(KUBERNETES / "examples")
        assert kubernetes.named(examples, "DistillJob", "ctr")["spec"]["coordinator"] == url
        (secret,) = (one["secret"]["secretName"] for one in pod.spec["volumes"] if "secret" in one)
        own = mesh.url(url.partition("@")[0].rpartition("/")[2], secret)
        with closing(open_job_board(own, DEADLINE_S)) as board:
            assert read_progress(board, "ctr", 1) == TrainingProgress(), "nothing is refused"
        # A sentinel tells strangers who the master is, and takes no orders from them.
        with client_of(mesh.sentinels[0]) as stranger:
            for order in (("FAILOVER", "mesh"), ("SET", "mesh", "quorum", "1")):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    stranger.execute_command("SENTINEL", *order)
        # And Redis lets nobody in without a password.
        with client_of(mesh.nodes[0]) as stranger, pytest.raises(redis.RedisError):
            stranger.ping()


@pytest.mark.nightly
def test_a_dead_master_is_replaced_and_comes_back_as_a_replica(
    tmp_path: Path, secrets: dict[str, dict[str, bytes]]
) -> None:
    with mesh_of(tmp_path, secrets, sentinels=3) as mesh, ExitStack() as stack:
        first, second = mesh.nodes
        for one in mesh.sentinels:
            wait_until(lambda s=one: master_of(s).get("num-other-sentinels") == 2)  # type: ignore[misc]
        client = open_client(parse(mesh.url("edl-manager", "edl-redis-manager")), 2.0)
        client.hset("edl:kept", "is", "yes")
        written = mesh.info(first)["master_repl_offset"]
        wait_until(lambda: mesh.info(second).get("slave_repl_offset", -1) >= written)
        # Back before anybody has noticed, and empty: the other one takes over all the same.
        mesh.running[first].kill()
        mesh.begin(first, stack)
        wait_until(lambda: mesh.masters() == {second})
        wait_until(lambda: mesh.info(first).get("role") == "slave")
        assert mesh.info(second)["role"] == "master"
        assert client.hget("edl:kept", "is") == "yes"
        client.close()
        # A sentinel that starts anew watches the one that is master by now, not the first of all.
        sentinel = mesh.sentinels[0]
        mesh.running[sentinel].kill()
        mesh.begin(sentinel, stack)
        wait_until(lambda: master_of(sentinel).get("ip:port") == second)
        wait_until(lambda: master_of(sentinel).get("num-other-sentinels") == 2)


def test_each_user_of_the_urls_has_a_secret(secrets: dict[str, dict[str, bytes]]) -> None:
    users = secrets["edl-redis-server"]["users.acl"].decode().splitlines()
    assert users[0] == "user default off"
    names = [line.split()[1] for line in users[1:]]
    assert sorted(names) == sorted({*names})  # the lines of a second service stand once
    assert {"edl-teacher-ctr", "edl-teacher-toys", "edl-manager", "edl-reader"} <= {*names}
    nobodys = {"replica", "sentinel"}  # Redis is among itself by these
    assert {f"edl-redis-{name.removeprefix('edl-')}" for name in {*names} - nobodys} == {
        name for name in secrets if name != "edl-redis-server"
    }
    assert not any("<sha256" in line for line in users)  # which Redis would refuse
    passwords = [one["password"] for name, one in secrets.items() if name != "edl-redis-server"]
    assert len({*passwords}) == len(passwords) == 7
    assert all(len(one.strip()) == 64 for one in passwords)


@pytest.mark.parametrize("script", ["redis.sh", "sentinel.sh"])
def test_with_tls_there_is_no_plain_port(script: str, tmp_path: Path) -> None:
    """By what the scripts write and ask; the server of these tests is built without TLS."""
    server, cli = tmp_path / "server", tmp_path / "cli"
    server.write_text('#!/bin/sh\ncat "$1"\n')
    # Sentinels do not answer, and of the servers the second says that it is the master.
    cli.write_text(
        f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\n'
        'case "$*" in *26379*) exit 1 ;; *edl-redis-1*role) echo master ;; *) echo PONG ;; esac\n'
    )
    for program in (server, cli):
        program.chmod(stat.S_IRWXU)
    for secret in ("sentinel-password", "replica-password"):
        (tmp_path / secret).write_text("hidden\n")
    role, _, _ = script.partition(".")
    folder = str(tmp_path)
    own = {"REDIS_TLS": "yes", "SECRETS": folder, "DATA": folder, "HOSTNAME": f"edl-{role}-0"}
    programs = {"PATH": "/usr/bin:/bin", "SERVER": str(server), "CLI": str(cli)}
    done = subprocess.run(
        ["sh", SCRIPTS / script],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=own | programs,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    port = "6379" if role == "redis" else "26379"
    assert {f"tls-port {port}", "port 0", "tls-replication yes"} <= {*lines}
    assert f"port {port}" not in lines
    if role == "redis":
        assert "replicaof edl-redis-1.edl-redis 6379" in lines
        assert "replica-announce-ip edl-redis-0.edl-redis" in lines
    else:
        assert "sentinel monitor mesh edl-redis-1.edl-redis 6379 2" in lines
        assert "sentinel announce-ip edl-sentinel-0.edl-sentinel" in lines
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked
    assert all("--tls --cacert /etc/edl/tls/ca.crt" in line for line in asked)
    assert not any("hidden" in line for line in asked), "others see what programs are called with"
    assert stat.S_IMODE((tmp_path / f"{role}.conf").stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["HUP", "INT", "TERM"])
def test_no_password_remains_on_disk_after_a_signal(tmp_path: Path, name: str) -> None:
    program, work = tmp_path / "edl", tmp_path / "work"
    program.write_text(f"#!/bin/sh\nkill -{name} $PPID\n")
    program.chmod(0o755)
    work.mkdir()
    argv, env = (str(KUBERNETES / "secrets.sh"), "ctr"), {"EDL": str(program), "TMPDIR": str(work)}
    # Under nohup a shell cannot catch SIGHUP; the guard makes its program handle it again.
    process = start(Command("secrets", argv, env=env, guard=True))
    assert process.wait(DEADLINE_S) not in (0, None)
    assert process.tail() == []
    assert list(work.iterdir()) == []

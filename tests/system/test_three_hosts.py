"""A mesh with certificates, tokens and users of Redis on three hosts, which are namespaces.

Host 0 has Redis and a manager, host 1 another manager and two teachers, host 2 a student. The test
runs this file as a program in namespaces of its own.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from edl import deploy
from edl.coordinator.embedded import server_program
from edl.coordinator.registry.acl import NO_DEFAULT
from edl.runtime.supervise import Command, Process, start
from edl.tests.proto.security.authority import write_secret
from edl.tests.waiting import DEADLINE_S, wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

NAMESPACES = ("unshare", "-Urn")
SERVICE = "resnet"
REDIS, TEACHERS, STUDENT = 0, 1, 2
PYTHON = (sys.executable, "-P", "-u")
TOKENS = {
    "student": f"student:{SERVICE} student-secret\n",
    "admin": "admin:ann admin-secret\n",
    "probe": "viewer:probe probe-secret\n",
}
#: A batch takes it 40 ms.
MODEL = "edl.tests.teacher.functions:slow"
TRAINING = """
import sys, threading, time
import numpy as np
from edl.distill_reader import TLS, DistilReader
url, folder = sys.argv[1:]
batches = [(np.ones((4, 8), np.float32),)] * 1_000_000
reader = DistilReader(
    batches, service="resnet", coordinator=url, job="resnet",
    tls=TLS(ca=f"{folder}/ca.pem"), token_file=f"{folder}/student.token",
)
def tell():
    while True:
        print("waits for", reader.stats.waiting_for or "nothing", flush=True)
        time.sleep(0.2)
threading.Thread(target=tell, daemon=True).start()
with reader:
    for number, _ in enumerate(reader):
        print("batch", number, flush=True)
        time.sleep(0.05)  # longer than a label takes: one teacher would do
"""


@pytest.fixture(autouse=True)
def namespaces() -> None:
    tools = ("unshare", "nsenter", "ip", "openssl")
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        pytest.skip(f"needs {', '.join(missing)}")
    bridge = ("ip", "link", "add", "bridge", "type", "bridge")
    if subprocess.run([*NAMESPACES, *bridge]).returncode:
        pytest.skip("needs user namespaces and bridges")


def test_an_operators_scenario(tmp_path: Path) -> None:
    program = "edl.tests.system.test_three_hosts"
    argv = (*NAMESPACES, *PYTHON, "-m", program, str(tmp_path))
    process = start(Command("scenario", argv, guard=True))
    try:
        code = process.wait(800.0)
        assert code == 0, "\n".join(process.tail(80))
    finally:
        process.stop(grace_s=30.0)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class Network:
    """Hosts at one bridge: network namespaces, each with a process that sleeps in it."""

    def __init__(self, count: int, ending: ExitStack) -> None:
        self.addresses = [f"10.77.0.{number}" for number in range(1, count + 1)]
        self._sleepers: list[int] = []
        self._cut: list[tuple[int, str]] = []
        ip("link", "add", "bridge", "type", "bridge")
        ip("link", "set", "bridge", "up")
        for number, address in enumerate(self.addresses):
            program = ["unshare", "-n", "sh", "-c", "echo; exec sleep infinity"]
            sleeper = ending.enter_context(subprocess.Popen(program, stdout=subprocess.PIPE))
            ending.callback(sleeper.kill)
            assert sleeper.stdout is not None
            sleeper.stdout.readline()  # its namespace is there
            self._sleepers.append(sleeper.pid)
            end = ("peer", "name", "eth0", "netns", str(sleeper.pid))
            ip("link", "add", f"host{number}", "type", "veth", *end)
            ip("link", "set", f"host{number}", "master", "bridge", "up")
            for words in (f"addr add {address}/24 dev eth0", "link set lo up", "link set eth0 up"):
                subprocess.run(self.inside(number, "ip", *words.split()), check=True)

    def inside(self, number: int, *words: str) -> tuple[str, ...]:
        """What runs a program on a host."""
        return ("nsenter", "-t", str(self._sleepers[number]), "-n", "--", *words)

    def part(self, one: int, other: int) -> None:
        """From now on nothing passes between two hosts: they send to an address of nobody."""
        self._cut = [(one, self.addresses[other]), (other, self.addresses[one])]
        for number, address in self._cut:
            nobody = ("lladdr", "02:00:00:00:00:01", "nud", "permanent", "dev", "eth0")
            command = self.inside(number, "ip", "neigh", "replace", address, *nobody)
            subprocess.run(command, check=True)

    def heal(self) -> None:
        for number, address in self._cut:
            command = self.inside(number, "ip", "neigh", "del", address, "dev", "eth0")
            subprocess.run(command, check=True)


class Mesh:
    """The three hosts and what runs there."""

    def __init__(self, folder: Path, ending: ExitStack) -> None:
        self.folder, self._ending = folder, ending
        self.net = Network(3, ending)
        self._make_secrets()
        redis = (server_program(), "--bind", self.net.addresses[REDIS], "--save", "")
        self._on(REDIS, "Ready to accept", *redis, "--aclfile", f"{folder}/users.acl")
        for number in (REDIS, TEACHERS):
            self._serve_manager(number)
        for name in ("t1", "t2"):
            self._serve_teacher(name)
        training = (*PYTHON, "-c", TRAINING, self.url("edl-reader"), str(folder))
        self.student = self._on(STUDENT, "^batch 20$", *training)

    def url(self, user: str) -> str:
        """Of Redis, for one of its users."""
        file = self.folder / f"{user}.password"
        return f"redis://{user}@{self.net.addresses[REDIS]}:6379?password_file={file}"

    def edl(self, token: str, user: str, *words: str) -> str:
        """What an `edl` command on the student's host prints, whatever its exit code is."""
        token_file = f"{self.folder}/{token}.token"
        secrets = {"EDL_TLS_CA": f"{self.folder}/ca.pem", "EDL_TOKEN_FILE": token_file}
        command = (*PYTHON, "-m", "edl", *words, "--redis", self.url(user))
        process = self._start(STUDENT, *command, env=secrets)
        process.wait(DEADLINE_S)
        return "\n".join(process.tail(200))

    def status(self) -> dict[str, Any]:
        told = self.edl("admin", "edl-manager", "status", "--json")
        return dict(json.loads(told)["services"][0])

    def goes_on(self) -> None:
        """Wait until the student has 20 more batches."""

        def batches() -> int:
            told = [line.split()[1] for line in self.student.tail(200) if line.startswith("batch ")]
            return int(told[-1])

        last = batches()
        wait_until(lambda: batches() >= last + 20)

    def let_in(self, *names: str) -> None:
        """Whose tokens managers take."""
        write_secret(self.folder / "manager-tokens", "".join(TOKENS[name] for name in names))

    def _make_secrets(self) -> None:
        folder, script = self.folder, Path(deploy.__file__).parent / "tls" / "certificates.sh"
        managers = (self.net.addresses[REDIS], self.net.addresses[TEACHERS])
        for words in (
            ["ca"],
            ["manager", "manager", *managers],
            ["teacher", "teacher", managers[1]],
        ):
            command = ["sh", str(script), words[0], str(folder), *words[1:]]
            subprocess.run(command, check=True)
        for name, line in TOKENS.items():
            write_secret(folder / f"{name}.token", line.split()[1])
        write_secret(folder / "teacher-tokens", TOKENS["student"] + TOKENS["probe"])
        self.let_in("student", "admin")
        acl = [*PYTHON, "-m", "edl", "coordinator", "acl", "--service", SERVICE]
        for option in ("manager", "reader", "student", "agent", "fleet", "teacher"):
            user = f"edl-{option}" + (f"-{SERVICE}" if option == "teacher" else "")
            file = write_secret(folder / f"{user}.password", f"{user}-password")
            acl += ["--password-file", f"{option}={file}"]
        told = subprocess.run(acl, check=True, capture_output=True, text=True)
        (folder / "users.acl").write_text(f"{NO_DEFAULT}\n{told.stdout}")

    def _serve_manager(self, number: int) -> None:
        folder = self.folder
        words = ("coordinator", "serve", "--redis", self.url("edl-manager"))
        listen = ("--listen", self.net.addresses[number], "--tokens", f"{folder}/manager-tokens")
        tls = ("--tls", f"cert={folder}/manager.pem,key={folder}/manager.key")
        probe = ("--probe", f"ca={folder}/ca.pem,token-file={folder}/probe.token")
        program = (*PYTHON, "-m", "edl", *words, *listen, *tls, *probe)
        self._on(number, "coordinator ready", *program)

    def _serve_teacher(self, name: str) -> None:
        folder, url = self.folder, self.url(f"edl-teacher-{SERVICE}")
        words = ("serve", "--model", MODEL, "--service", SERVICE, "--redis", url)
        listen = ("--listen", self.net.addresses[TEACHERS], "--tokens", f"{folder}/teacher-tokens")
        tls = ("--tls", f"cert={folder}/teacher.pem,key={folder}/teacher.key")
        program = (*PYTHON, "-m", "edl.teacher", *words, "--teacher-id", name, *listen, *tls)
        self._on(TEACHERS, "teacher ready", *program)

    def _on(self, number: int, ready: str, *words: str) -> Process:
        process = self._start(number, *words)
        self._ending.callback(process.stop)
        process.expect(ready, DEADLINE_S)
        return process

    def _start(self, number: int, *words: str, env: Mapping[str, str] | None = None) -> Process:
        argv = self.net.inside(number, *words)
        return start(Command(f"host {number}", argv, env=env or {}, guard=True))


def doctors_find_nothing_wrong(mesh: Mesh) -> None:
    """Neither an administrator's nor a student's."""
    for token, user in (("admin", "edl-manager"), ("student", "edl-reader")):
        told = mesh.edl(token, user, "doctor")
        assert "WRONG" not in told, told
        assert "ok" in told, told


def a_student_out_of_reach_of_its_teachers_goes_on_when_they_are_back(mesh: Mesh) -> None:
    wait_until(lambda: bool(mesh.status()["desired_teachers"]))
    desired = mesh.status()["desired_teachers"]
    mesh.net.part(STUDENT, TEACHERS)
    wait_until(lambda: all("unreachable since" in one for one in mesh.student.tail(100)))
    assert mesh.status()["desired_teachers"] == desired, "nothing is scaled for it"
    mesh.net.heal()
    mesh.goes_on()


def a_host_without_redis_comes_back(mesh: Mesh) -> None:
    """Its teachers' leases run out meanwhile."""
    mesh.net.part(REDIS, TEACHERS)
    wait_until(lambda: mesh.status()["teacher_count"] == 0)
    mesh.net.heal()
    wait_until(lambda: mesh.status()["teacher_count"] == 2)
    mesh.goes_on()


def a_revoked_student_holds_nothing(mesh: Mesh) -> None:
    mesh.let_in("admin")
    wait_until(lambda: mesh.status()["student_count"] == 0)
    mesh.let_in("student", "admin")
    wait_until(lambda: mesh.status()["student_count"] == 1)
    mesh.goes_on()


def main(folder: Path) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with ExitStack() as ending:
        mesh = Mesh(folder, ending)
        doctors_find_nothing_wrong(mesh)
        a_student_out_of_reach_of_its_teachers_goes_on_when_they_are_back(mesh)
        a_host_without_redis_comes_back(mesh)
        a_revoked_student_holds_nothing(mesh)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

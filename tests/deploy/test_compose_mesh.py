"""The mesh of the compose file, alive: its very commands and variables, as processes."""

from __future__ import annotations

import re
import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from edl.coordinator.embedded import free_port
from edl.supervise import Process, python_command, start
from edl.tests.deploy import compose_file
from edl.tests.deploy.compose_file import ROOT, SECRETS, environment
from edl.tests.system.redis_servers import TlsProxy, redis_server
from edl.tests.waiting import wait_until

pytestmark = pytest.mark.system

COMPOSE = compose_file.load({"EDL_USER": "1000:1000"})
READY_S = 90.0
ENDS_S = 60.0


@dataclass
class _Certificate:
    """Redis's own, in the place of an authority that makes one."""

    folder: Path

    def issue_cert(self, _: str) -> _Certificate:
        return self

    def configure_cert(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self.folder / "redis.pem", self.folder / "redis.key")


@dataclass
class Mesh:
    """Services of the compose file, of which each is a process here.

    Attributes:
        folder: where `prepare.sh` has run.
        redis_port: of Redis, behind TLS.
    """

    folder: Path
    redis_port: int

    def text(self, inside: str) -> str:
        """What stands in the file, with what is of containers turned into ours."""
        for theirs, ours in (
            (SECRETS, f"{self.folder}/secrets/"),
            ("/var/lib/edl", f"{self.folder}/work"),
            ("/examples", f"{ROOT}/examples"),
            ("/jobs/", f"{self.folder}/jobs/"),
            ("@redis:6379", f"@localhost:{self.redis_port}"),
        ):
            inside = inside.replace(theirs, ours)
        return inside

    def variables(self, name: str) -> dict[str, str]:
        """Those of a service; every host is this one, every port another one."""
        found = {k: self.text(v) for k, v in environment(COMPOSE["services"][name]).items()}
        ours = {"EDL_HOST": "127.0.0.1", "EDL_ADVERTISE": "localhost", "EDL_HTTP": "0"}
        ours |= {key: str(free_port()) for key in ("EDL_PORT", "EDL_METRICS_LISTEN")}
        home = {"HOME": f"{self.folder}/home"}  # as the image has one of its own
        return {**home, **found, **{key: value for key, value in ours.items() if key in found}}

    @contextmanager
    def running(
        self, name: str, *more: str, ready: str = "", **variables: str
    ) -> Iterator[Process]:
        """A service, until the end of the `with`; its health check has passed where it has one."""
        service = COMPOSE["services"][name]
        env = {**self.variables(name), "SECRETS": f"{self.folder}/secrets", **variables}
        command = [*map(self.text, service["command"]), *more]
        process = start(python_command(name, "edl", *command, env=env))
        try:
            if not service["healthcheck"].get("disable"):
                process.expect(r"^(coordinator|teacher) ready: ", READY_S)
                self._check(service["healthcheck"]["test"], env)
            yield process
            if process.alive:
                process.send_signal(signal.SIGTERM)
                assert process.wait(ENDS_S) == 0
        finally:
            process.stop()

    def _check(self, test: list[str], env: dict[str, str]) -> None:
        program = ROOT / "deploy" / "containers" / test[1]
        done = subprocess.run(
            (program,), env=env | {"PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
            check=False, timeout=60,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "ready\n")

    def operator(self, *command: str) -> str:
        """What a command of the service for operators prints."""
        process = start(python_command("edl", "edl", *command, env=self.variables("edl")))
        try:
            assert process.wait(ENDS_S) == 0, "\n".join(process.tail())
            return "\n".join(process.tail())
        finally:
            process.stop()


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    folder = compose_file.prepared(tmp_path, "localhost")
    for name in ("work", "home"):
        (folder / name).mkdir()
    with ExitStack() as stack:
        users = str(folder / "secrets" / "users.acl")
        _, port = stack.enter_context(redis_server("--aclfile", users))
        certificate: Any = _Certificate(folder / "secrets")
        proxy = TlsProxy(port, certificate)
        stack.callback(proxy.close)
        yield Mesh(folder, proxy.port)


MODEL = """
def double(inputs):
    return {"y": inputs["x"] * 2}
"""


def test_certificates_users_and_probes_fit_together(mesh: Mesh) -> None:
    """With a model of numpy in the place of the example's, which takes long to make."""
    (mesh.folder / "double.py").write_text(MODEL)
    model = {"EDL_MODEL": "double:double", "PYTHONPATH": str(mesh.folder)}
    with (
        mesh.running("coordinator"),
        mesh.running("teacher-1", "--input=x:FP32:-1,4", **model),
    ):
        wait_until(lambda: "service ctr: 1 teachers serve" in mesh.operator("doctor"), READY_S)
        assert "WRONG" not in mesh.operator("doctor")
        assert re.search(r"teacher-1\s+localhost:\d+\s+serving", mesh.operator("status"))
        assert "draining ctr/teacher-1" in mesh.operator("drain", "teacher-1")


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_student_learns_from_both_teachers(mesh: Mesh) -> None:
    with mesh.running("coordinator"):
        script = mesh.text(COMPOSE["services"]["model"]["command"][0])
        subprocess.run(
            (*COMPOSE["services"]["model"]["entrypoint"][2:], script.replace("20000", "4000")),
            cwd=mesh.folder / "work",
            env={**mesh.variables("model"), "PATH": f"{_python_folder()}:/usr/bin:/bin"},
            check=True,
            timeout=300,
        )
        with mesh.running("teacher-1"), mesh.running("teacher-2"):
            with mesh.running("student") as student:
                student.expect(r"^finished at step \d+", 300.0)
                assert student.wait(ENDS_S) == 0
            both = cast("dict[str, Any]", COMPOSE["services"])
            assert {"teacher-1", "teacher-2"} <= both.keys()
            events = mesh.operator("events", "--last=0")
            assert re.search(r"assigned\s+ctr/0 .*teacher-[12]", events)


def _python_folder() -> str:
    import sys

    return str(Path(sys.executable).parent)

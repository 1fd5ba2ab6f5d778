"""The compose file: valid, whole, hardened, of commands that work; and its mesh, as processes."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography import x509

import edl
from edl.coordinator.store.redis_url import parse
from edl.runtime.supervise import Process, python_command, start
from edl.tests.coordinator.conftest import held_port
from edl.tests.deploy import compose_file
from edl.tests.deploy.command_lines import check
from edl.tests.deploy.compose_file import FILE, FOLDER, ROOT, SECRETS, environment, seconds, secrets
from edl.tests.system.redis_servers import TlsProxy, redis_server
from edl.tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.system

VALUES = {"EDL_USER": "1000:1000"}
COMPOSE = compose_file.load(VALUES)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = sorted(name for name in SERVICES if SERVICES[name]["image"].startswith("edl-dist"))
#: Those whose command is of `edl`.
COMMANDS = [name for name in OURS if "entrypoint" not in SERVICES[name]]
NAMES = sorted(SERVICES)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compose_file.prepared(tmp_path_factory.mktemp("deploy"), "localhost")


def test_the_file_is_one_of_the_specification() -> None:
    checker = (sys.executable, "-P", "-m", "check_jsonschema")
    command = (*checker, "--builtin-schema", "vendor.compose-spec", FILE)
    subprocess.run(command, check=True, timeout=DEADLINE_S)


def test_what_is_named_is_there_and_used() -> None:
    for kind in ("secrets", "configs", "volumes", "networks"):
        entries = [one for service in SERVICES.values() for one in service.get(kind, ())]
        sources = {one["source"] if isinstance(one, dict) else one.split(":")[0] for one in entries}
        assert {one for one in sources if one[0] not in "/."} == COMPOSE[kind].keys(), kind


def test_prepare_makes_each_secret_for_its_owner_alone(prepared: Path) -> None:
    for secret in COMPOSE["secrets"].values():
        path = prepared / secret["file"]
        assert path.stat().st_size > 0
        if path.suffix != ".pem":
            assert path.stat().st_mode & 0o077 == 0, path
    assert (prepared / "pki" / "ca.key").is_file()
    assert not list((prepared / "secrets").glob("ca.key")), "no container gets the authority's key"
    made = dict(line.split("=") for line in (prepared / ".env").read_text().split())
    compose_file.load(made)
    assert not made["EDL_USER"].startswith("0:")
    ignored = (FOLDER / ".gitignore").read_text().split()
    assert {"secrets/", "pki/", ".env"} <= set(ignored)


def test_prepare_keeps_an_authority_whose_key_was_moved_away(tmp_path: Path) -> None:
    folder = compose_file.prepared(tmp_path)
    (folder / "pki" / "ca.key").unlink()
    before = {file: file.read_bytes() for file in folder.glob("*/*.pem")}
    assert compose_file.prepare(folder).returncode == 0
    assert {file: file.read_bytes() for file in folder.glob("*/*.pem")} == before
    (folder / "secrets" / "ctr.pem").unlink()
    assert "pki/ca.key is missing: copy it back" in compose_file.prepare(folder).stderr


@pytest.mark.parametrize("name", NAMES)
def test_services_are_hardened(name: str) -> None:
    service = SERVICES[name]
    registry, _, image = service["image"].rpartition("/")
    assert "." not in registry
    if name in OURS:  # built here
        assert (image, service["pull_policy"]) == (f"edl-dist:{edl.__version__}", "never")
    assert service["user"] == VALUES["EDL_USER"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.keys() & {"privileged", "cap_add", "network_mode", "pid", "ipc", "devices"}
    assert "ports" not in service
    assert "stop_grace_period" in service or "entrypoint" in service
    for volume in service.get("volumes", ()):
        assert not volume.startswith(".") or volume.endswith(":ro")
    assert COMPOSE["networks"]["mesh"]["internal"] is True


@pytest.mark.parametrize("name", COMMANDS)
def test_each_role_can_start_authenticate_and_stop(name: str, prepared: Path) -> None:
    service, variables = SERVICES[name], environment(SERVICES[name])
    values = check(["edl", *service["command"]], variables)
    assert seconds(service["stop_grace_period"]) >= values.get("grace", 0.0) + 5
    named = set(re.findall(rf"{SECRETS}[\w.-]+", json.dumps(variables)))
    job = {f"{SECRETS}ctr.pem", f"{SECRETS}ctr.key"} if name == "student" else set()
    assert named | job == secrets(service)
    assert f"{SECRETS}ca.pem" in named
    url = variables.get("EDL_REDIS") or variables["EDL_COORDINATOR"]
    parse(url.replace(SECRETS, f"{prepared}/secrets/"))
    parts = urlsplit(url)
    assert (parts.scheme, parts.hostname) == ("rediss", "redis")
    users = {"coordinator": "edl-manager", "teacher": "edl-teacher-ctr"}
    assert parts.username == users.get(service["command"][0], "edl-student")
    lines = (prepared / "secrets" / "users.acl").read_text().splitlines()
    assert f"user {parts.username} on" in [" ".join(line.split()[:3]) for line in lines]
    assert lines[0] == "user default off"
    assert parse_qs(parts.query)["password_file"][0] in named


@pytest.mark.parametrize("name", ["redis", "coordinator", "teacher-1", "teacher-2"])
def test_certificates_name_the_host_that_others_dial(name: str, prepared: Path) -> None:
    variables = environment(SERVICES[name])
    assert variables.get("EDL_ADVERTISE", name) == name
    file = variables.get("EDL_TLS_CERT", f"{SECRETS}redis.pem").rpartition("/")[2]
    certificate = x509.load_pem_x509_certificate((prepared / "secrets" / file).read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [name, "localhost"]


@pytest.mark.parametrize("name", NAMES)
def test_dependants_wait_for_health_or_completion(name: str) -> None:
    health, ends = SERVICES[name]["healthcheck"], SERVICES[name]["restart"] == "no"
    conditions = {
        service["depends_on"][name]["condition"]
        for service in SERVICES.values()
        if name in service.get("depends_on", {})
    }
    assert conditions <= {"service_completed_successfully" if ends else "service_healthy"}
    if health.get("disable"):
        assert "service_healthy" not in conditions
        return
    kind, *command = health["test"]
    if kind == "CMD":
        assert command == ["edl-health"]
        assert environment(SERVICES[name])["EDL_METRICS_LISTEN"].isdigit()
    else:
        assert kind == "CMD-SHELL"
        subprocess.run(("sh", "-nc", *command), check=True, timeout=DEADLINE_S)
        assert command[0].split()[-2:] == ["-q", "PONG"]
    assert seconds(health["timeout"]) < seconds(health["interval"])


def test_the_redis_server_is_told_what_its_configuration_needs() -> None:
    service = SERVICES["redis"]
    program, config, *options = service["command"]
    assert program == "valkey-server"
    (mounted,) = service["configs"]
    assert mounted["target"] == config
    text = (FOLDER / COMPOSE["configs"][mounted["source"]]["file"]).read_text()
    mounts = {path for path in secrets(service) if not path.startswith(SECRETS)}
    assert {*re.findall(r"(/etc/redis/\S+)", text)} == mounts
    assert options[:2] == ["--save", ""]


def test_commands_of_the_readme_name_services() -> None:
    text = (FOLDER / "README.md").read_text()
    commands = re.findall(r"^docker compose (.+?)(?:\s+#.*)?$", text, re.MULTILINE)
    for words in map(shlex.split, commands):
        if words[0] == "run":
            assert words[:3] == ["run", "--rm", "edl"]
            check(["edl", *words[3:]], environment(SERVICES["edl"]))
        else:
            assert {word for word in words[1:] if not word.startswith("-")} <= SERVICES.keys()
    assert commands


@dataclass
class Mesh:
    """Services of the compose file in a prepared folder, of which each is a process here."""

    folder: Path
    redis_port: int
    undo: ExitStack

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
        found = {k: self.text(v) for k, v in environment(SERVICES[name]).items()}
        ours = {"EDL_ADVERTISE": "localhost", "EDL_HTTP": "0"}
        for key in ("EDL_LISTEN", "EDL_TRANSPORT_PORT", "EDL_METRICS_LISTEN"):
            ours[key] = str(self.undo.enter_context(held_port()))
        home = {"HOME": f"{self.folder}/home"}  # as the image has one of its own
        return {**home, **found, **{key: value for key, value in ours.items() if key in found}}

    @contextmanager
    def running(self, name: str, *more: str, **variables: str) -> Iterator[Process]:
        """A service, until the end of the `with`; its health check has passed where it has one."""
        service = SERVICES[name]
        env = {**self.variables(name), "SECRETS": f"{self.folder}/secrets", **variables}
        command = [*map(self.text, service["command"]), *more]
        process = start(python_command(name, "edl", *command, env=env))
        try:
            if not service["healthcheck"].get("disable"):
                process.expect(r"^(coordinator|teacher) ready: ", DEADLINE_S)
                health = ROOT / "deploy" / "containers" / service["healthcheck"]["test"][1]
                path = {"PATH": "/usr/bin:/bin"}
                said = subprocess.check_output(health, env=env | path, timeout=DEADLINE_S)
                assert said == b"ready\n"
            yield process
            if process.alive:
                process.send_signal(signal.SIGTERM)
                assert process.wait(DEADLINE_S) == 0
        finally:
            process.stop()

    def run(self, *command: str) -> tuple[int | None, str]:
        """The exit code of a command of an operator, and what it prints."""
        process = start(python_command("edl", "edl", *command, env=self.variables("edl")))
        try:
            return process.wait(DEADLINE_S), "\n".join(process.tail())
        finally:
            process.stop()

    def operator(self, *command: str) -> str:
        code, said = self.run(*command)
        assert code == 0, said
        return said


@pytest.fixture
def mesh(prepared: Path) -> Iterator[Mesh]:
    for name in ("work", "home"):
        (prepared / name).mkdir(exist_ok=True)
    with ExitStack() as undo:
        users = str(prepared / "secrets" / "users.acl")
        _, port = undo.enter_context(redis_server("--aclfile", users))
        # Redis's own certificate, in the place of an authority that makes one.
        chain = (prepared / "secrets" / "redis.pem", prepared / "secrets" / "redis.key")
        own = SimpleNamespace(configure_cert=lambda context: context.load_cert_chain(*chain))
        authority: Any = SimpleNamespace(issue_cert=lambda *_, **__: own)
        proxy = TlsProxy(port, authority)
        undo.callback(proxy.close)
        yield Mesh(prepared, proxy.port, undo)


MODEL = """
def double(inputs):
    return {"y": inputs["x"] * 2}
"""


def test_certificates_users_and_probes_fit_together(mesh: Mesh) -> None:
    """With a model of numpy in the place of the example's, which takes long to make."""
    (mesh.folder / "double.py").write_text(MODEL)
    model = {"EDL_MODEL": "double:double", "PYTHONPATH": str(mesh.folder)}
    teacher_1 = mesh.running("teacher-1", "--input=x:FP32:-1,4", **model)
    with mesh.running("coordinator"), teacher_1 as teacher:

        def fits() -> bool:
            code, found = mesh.run("doctor")  # it cannot reach a process that stalls for 2 s
            return code == 0 and "WRONG" not in found and "service ctr: 1 teacher serves" in found

        wait_until(fits)
        assert re.search(r"teacher-1\s+localhost:\d+\s+serving", mesh.operator("status"))
        assert "draining ctr/teacher-1" in mesh.operator("drain", "teacher", "teacher-1")
        assert teacher.wait(DEADLINE_S) == 0


@pytest.mark.timeout(600)
def test_the_student_learns_from_both_teachers(mesh: Mesh) -> None:
    model = SERVICES["model"]
    script = mesh.text(model["command"][0]).replace("20000", "4000")
    with mesh.running("coordinator"):
        command, env = (*model["entrypoint"][2:], script), mesh.variables("model")
        env["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        subprocess.run(command, cwd=mesh.folder / "work", env=env, check=True, timeout=300)
        teachers = mesh.running("teacher-1"), mesh.running("teacher-2")
        with teachers[0], teachers[1], mesh.running("student") as student:
            student.expect(r"^finished at step \d+", 300.0)
            assert student.wait(DEADLINE_S) == 0
        events = mesh.operator("events", "--last=0")
        assert re.search(r"assigned\s+ctr/0 .*teacher-[12]", events)

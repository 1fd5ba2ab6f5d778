"""The compose file: valid, whole, hardened, of commands that work; and its mesh, as processes."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography import x509

import edl
from edl.coordinator.registry.redis_url import parse
from edl.tests.deploy import compose_file
from edl.tests.deploy.command_lines import check
from edl.tests.deploy.compose_file import FILE, FOLDER, SECRETS, environment, seconds, secrets

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


def valid(path: Path) -> bool:
    """Whether the schema of the compose specification has nothing against a file."""
    done = subprocess.run(
        (sys.executable, "-P", "-m", "check_jsonschema", "--builtin-schema",
         "vendor.compose-spec", path),
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return done.returncode == 0


def test_the_file_is_one_of_the_specification(tmp_path: Path) -> None:
    assert valid(FILE)
    bad = tmp_path / "compose.yaml"
    bad.write_text(FILE.read_text().replace("cap_drop: [ALL]", "cap_drop: ALL", 1))
    assert not valid(bad)


def test_what_is_named_is_there_and_used() -> None:
    for kind in ("secrets", "configs", "volumes", "networks"):
        used: set[str] = set()
        for service in SERVICES.values():
            for one in service.get(kind, ()):
                source = one["source"] if isinstance(one, dict) else one.partition(":")[0]
                if not source.startswith(("/", ".")):
                    used.add(source)
        assert used == COMPOSE[kind].keys(), kind


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


@pytest.mark.parametrize("name", NAMES)
def test_each_service_may_do_as_little_as_it_can(name: str) -> None:
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
        source, _, mode = volume.split(":") if volume.count(":") == 2 else (*volume.split(":"), "")
        assert not source.startswith(".") or mode == "ro"
    assert COMPOSE["networks"]["mesh"]["internal"] is True


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_and_variables_are_those_of_edl(name: str) -> None:
    check(["edl", *SERVICES[name]["command"]], environment(SERVICES[name]))


@pytest.mark.parametrize("name", COMMANDS)
def test_whoever_names_a_secret_is_given_it(name: str) -> None:
    service = SERVICES[name]
    named = re.findall(rf"{SECRETS}[\w.-]+", json.dumps(service.get("environment")))
    assert named
    own = {key.rpartition("/")[2].partition(".")[0] for key in secrets(service)}
    job = {f"{SECRETS}ctr.pem", f"{SECRETS}ctr.key"} if name == "student" else set()
    assert set(named) | job == secrets(service).keys()
    assert "ca" in own


@pytest.mark.parametrize("name", COMMANDS)
def test_each_role_has_the_redis_user_that_is_for_it(name: str, prepared: Path) -> None:
    variables = environment(SERVICES[name])
    url = variables.get("EDL_REDIS") or variables["EDL_COORDINATOR"]
    parse(url.replace(SECRETS, f"{prepared}/secrets/"))
    parts = urlsplit(url)
    assert (parts.scheme, parts.hostname) == ("rediss", "redis")
    user = {"coordinator": "edl-manager", "teacher": "edl-teacher-ctr"}.get(
        SERVICES[name]["command"][0], "edl-student"
    )
    assert parts.username == user
    lines = (prepared / "secrets" / "users.acl").read_text().splitlines()
    assert f"user {user} on" in [" ".join(line.split()[:3]) for line in lines]
    assert lines[0] == "user default off"
    (file,) = parse_qs(parts.query)["password_file"]
    assert file in secrets(SERVICES[name])


@pytest.mark.parametrize("name", ["redis", "coordinator", "teacher-1", "teacher-2"])
def test_certificates_name_the_host_that_others_dial(name: str, prepared: Path) -> None:
    variables = environment(SERVICES[name])
    assert variables.get("EDL_ADVERTISE", name) == name
    file = variables.get("EDL_TLS_CERT", f"{SECRETS}redis.pem").rpartition("/")[2]
    certificate = x509.load_pem_x509_certificate((prepared / "secrets" / file).read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [name, "localhost"]


@pytest.mark.parametrize("name", NAMES)
def test_health_checks_can_be_run(name: str) -> None:
    health = SERVICES[name]["healthcheck"]
    if health.get("disable"):
        assert not [s for s in SERVICES.values() if waits_for(s, name) == "service_healthy"]
        return
    kind, *command = health["test"]
    if kind == "CMD":
        assert command == ["edl-health"]
        assert environment(SERVICES[name])["EDL_METRICS_LISTEN"].isdigit()
    else:
        assert kind == "CMD-SHELL"
        subprocess.run(("sh", "-nc", *command), check=True, timeout=20)
        assert command[0].split()[-2:] == ["-q", "PONG"]
    assert seconds(health["timeout"]) < seconds(health["interval"])


def waits_for(service: dict[str, Any], name: str) -> str:
    """For what of another service one waits at its start."""
    found: str = service.get("depends_on", {}).get(name, {}).get("condition", "")
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_who_is_told_to_stop_has_time_for_it(name: str) -> None:
    values = check(["edl", *SERVICES[name]["command"]], environment(SERVICES[name]))
    given_s = seconds(SERVICES[name]["stop_grace_period"])
    assert given_s >= values.get("grace", 0.0) + 5


@pytest.mark.parametrize("name", NAMES)
def test_services_wait_for_what_comes_to_be(name: str) -> None:
    for other in SERVICES[name].get("depends_on", {}):
        condition = waits_for(SERVICES[name], other)
        assert condition in ("service_healthy", "service_completed_successfully")
        ends = SERVICES[other]["restart"] == "no"
        assert ends == (condition == "service_completed_successfully")


def test_the_redis_server_is_told_what_its_configuration_needs() -> None:
    service = SERVICES["redis"]
    program, config, *options = service["command"]
    assert program == "valkey-server"
    (mounted,) = service["configs"]
    assert mounted["target"] == config
    text = (FOLDER / COMPOSE["configs"][mounted["source"]]["file"]).read_text()
    files = set(re.findall(r"(/etc/redis/\S+)", text))
    assert files == {path for path in secrets(service) if not path.startswith(SECRETS)}
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

"""The units of systemd: valid, hardened, of commands that work, with time enough to end."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edl.tests.deploy.command_lines import check
from edl.tests.waiting import DEADLINE_S

pytestmark = pytest.mark.system

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
NAMES = [unit.name for unit in UNITS]
EXAMPLES = {
    "edl-coordinator.service": "coordinator",
    "edl-teacher@.service": "teacher-resnet101",
    "edl-agent.service": "agent",
    "edl-student@.service": "student-resnet",
}
#: What the linter says and is not so.
WRONG = {
    "Security.UMaskOW": "bits of a mask are what files do not get",
    "Security.Delegate": "a service that makes no control groups wants none",
}
#: Settings that are newer than its list.
UNKNOWN = ("OOMPolicy",)
#: Seconds beyond its grace period that a service has to end, as it closes what it has.
MARGIN_S = 10
FINDING = re.compile(r"^.*:(\d+):(\w+) \[([\w.@-]+)\] - (.*)$", re.MULTILINE)


def settings(unit: Path) -> dict[str, list[str]]:
    """Of its section [Service]; some may stand there more than once."""
    found: dict[str, list[str]] = {}
    text = unit.read_text().partition("[Service]")[2].partition("\n[")[0]
    for line in text.splitlines():
        if line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def variables(file: Path) -> dict[str, str]:
    """Of an EnvironmentFile, as systemd reads it."""
    pairs = (line.partition("=") for line in file.read_text().splitlines() if line[:1] not in "#")
    return {key: value.strip('"') for key, _, value in pairs}


def command(unit: Path) -> tuple[list[str], dict[str, str]]:
    """What systemd would run with the example of its settings: words and variables."""
    service = settings(unit)
    (line,) = service["ExecStart"]
    instance = EXAMPLES[unit.name].partition("-")[2]
    env = dict(one.split("=", 1) for one in service.get("Environment", ()))
    env |= variables(FOLDER / "env" / f"{EXAMPLES[unit.name]}.env")
    words: list[str] = []
    for word in shlex.split(line.replace("%i", instance)):
        if match := re.fullmatch(r"\$(\w+)", word):
            words += env[match[1]].split()
        else:
            words.append(re.sub(r"\$\{(\w+)\}", lambda found: env[found[1]], word))
    return words, env


def lint(unit: Path) -> list[tuple[str, str]]:
    command = (sys.executable, "-P", "-m", "systemdlint", "--norootfs", unit)
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    found = done.stdout + done.stderr
    assert "Traceback" not in found, found
    return [(kind, text) for _, _, kind, text in FINDING.findall(found)]


@pytest.mark.parametrize("unit", UNITS, ids=NAMES)
def test_the_linter_has_nothing_right_to_say(unit: Path) -> None:
    found = [one for one in lint(unit) if one[0] not in WRONG and not one[1].startswith(UNKNOWN)]
    assert found == []


def test_the_linter_would_say_something(tmp_path: Path) -> None:
    bad = tmp_path / "bad.service"
    text = UNITS[0].read_text().replace("ProtectHome=yes", "ProtectHome=no")
    bad.write_text(text.replace("KillMode=mixed", "KillMode=most"))
    assert {"Security.ProtectHomeOff", "InvalidValue"} <= {kind for kind, _ in lint(bad)}


def test_systemd_itself_takes_them(tmp_path: Path) -> None:
    """Where systemd is installed; programs that are not installed here are named otherwise."""
    if (analyze := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd is not installed")
    for unit in UNITS:
        text = unit.read_text().replace("/opt/edl/bin/edl", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    command = (analyze, "verify", *(str(tmp_path / name) for name in NAMES))
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=NAMES)
def test_a_unit_runs_a_command_of_edl_and_gives_it_time_to_stop(unit: Path) -> None:
    words, env = command(unit)
    values = check(words, env)
    if unit.name == "edl-student@.service":
        assert (str(values["job_file"]), values["job"]) == (env["TRAIN_FILE"], "resnet")
    service = settings(unit)
    assert (service["KillSignal"], service["KillMode"]) == (["SIGTERM"], ["mixed"])
    assert int(service["TimeoutStopSec"][0]) >= values.get("grace", 0.0) + MARGIN_S
    assert service["Restart"] == ["on-failure"]
    assert "2" in service["RestartPreventExitStatus"][0].split()

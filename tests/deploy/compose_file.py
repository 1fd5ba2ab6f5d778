"""`deploy/compose/compose.yaml` as an engine reads it, and what `prepare.sh` makes for it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "compose"
FILE = FOLDER / "compose.yaml"
SECRETS = "/run/secrets/"
_VARIABLE = re.compile(r"\$(?:(\$)|\{(\w+)(?::([-?])([^}]*))?\})")


def load(values: Mapping[str, str]) -> dict[str, Any]:
    """The file with its variables filled in; AssertionError: one that it needs is not there."""

    def fill(found: re.Match[str]) -> str:
        dollar, name, kind, rest = found.groups()
        if dollar:
            return "$"
        assert kind != "?" or values.get(name), f"{name}: {rest}"
        return values.get(name) or (rest if kind == "-" else "")

    whole: dict[str, Any] = yaml.safe_load(_VARIABLE.sub(fill, FILE.read_text()))
    return whole


def prepared(folder: Path, hosts: str = "") -> Path:
    """A copy of what lies in `deploy/`, in which `prepare.sh` has run; its compose folder."""
    for name in ("compose", "redis", "tls"):
        ignored = shutil.ignore_patterns("secrets", "pki", ".env")
        shutil.copytree(ROOT / "deploy" / name, folder / name, ignore=ignored)
    done = prepare(folder / "compose", hosts)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "compose"


def prepare(folder: Path, hosts: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "EDL": f"{sys.executable} -P -m edl", "HOSTS": hosts}
    program = folder / "prepare.sh"
    return subprocess.run(program, env=env, capture_output=True, text=True, timeout=60)


def environment(service: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in (service.get("environment") or {}).items()}


def secrets(service: Mapping[str, Any]) -> set[str]:
    """Where its secrets lie in it."""
    named = [
        one if isinstance(one, dict) else {"source": one} for one in service.get("secrets", ())
    ]
    return {one.get("target", f"{SECRETS}{one['source']}") for one in named}


def seconds(text: str) -> float:
    """Of a duration as "45s", "2m"."""
    number, unit = re.fullmatch(r"(\d+)(s|m)", text).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1, "m": 60}[unit]

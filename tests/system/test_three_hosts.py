"""A mesh with certificates, tokens and users on three hosts, through what its operator meets."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edl.supervise import Command, start
from edl.tests.system.three_hosts_program import STEPS
from edl.tests.system.three_hosts_program import __name__ as program

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(900)]
NAMESPACES = ("unshare", "-Urn")


@pytest.fixture(autouse=True)
def namespaces() -> None:
    tools = ("unshare", "nsenter", "ip", "openssl")
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        pytest.skip(f"needs {', '.join(missing)}")
    if not Path("/dev/net/tun").exists() or subprocess.run([*NAMESPACES, "true"]).returncode:
        pytest.skip("needs user namespaces and /dev/net/tun")


def test_an_operators_scenario(tmp_path: Path) -> None:
    argv = (*NAMESPACES, sys.executable, "-P", "-u", "-m", program, str(tmp_path))
    process = start(Command("scenario", argv, guard=True))
    try:
        code = process.wait(800.0)
        assert code == 0, "\n".join(process.tail(80))
    finally:
        process.stop(grace_s=30.0)
    print(*process.tail(80), sep="\n")
    held = [line for line in process.tail(80) if line.startswith("held: ")]
    assert len(held) == len(STEPS)

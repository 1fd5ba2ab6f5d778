"""Walk-throughs, run from top to bottom: each prints what it promises."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from edl.supervise import Command, start
from edl.tests.examples.test_job_files import EXAMPLES


def printed(name: str, folder: Path, *patterns: str) -> list[re.Match[str]]:
    """Run an example in `folder`; the lines that it prints, in this order."""
    env = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    argv = (sys.executable, "-P", str(EXAMPLES / f"{name}_walkthrough.py"))
    run = start(Command(name, argv, env=env, cwd=folder, log=None))
    try:
        found = [run.expect(pattern, 60) for pattern in patterns]
        assert run.wait(30) == 0
    finally:
        run.stop()
    return found


def number(text: str) -> float:
    return float(text.replace(",", ""))


@pytest.mark.timeout(120)
def test_digits(tmp_path: Path) -> None:
    alone, taught = printed(
        "digits",
        tmp_path,
        r"student with 40 labels: ([0-9.]+)",
        r"student with teachers: ([0-9.]+)",
    )
    assert float(taught[1]) > float(alone[1]) + 0.1
    assert list(tmp_path.iterdir()) == []


def test_planning(tmp_path: Path) -> None:
    mesh, played, rough = printed(
        "planning",
        tmp_path,
        r"planned: (\d+) for 4",
        r"planned ([\d,]+), played ([\d,]+) samples/s",
        r"without (\d+) of (\d+): ([\d,]+) samples/s",
    )
    assert number(played[2]) == pytest.approx(number(played[1]), rel=0.05)
    assert rough[2] == mesh[1]
    assert number(rough[3]) < 0.85 * number(played[2])


def test_sharing(tmp_path: Path) -> None:
    waited, held = printed(
        "sharing",
        tmp_path,
        r"mean waiting time: (\d+) s all or nothing, (\d+) s elastic",
        r"while it holds 4 of 8 slots, jobs have (\d+) at most",
    )
    assert int(waited[2]) < int(waited[1]) / 10
    assert 0 < int(held[1]) <= 4

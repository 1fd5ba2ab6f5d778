"""Examples in cells, as notebooks open them: run from top to bottom, each says what it promises."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from edl.supervise import Command, start
from edl.tests.examples.test_job_files import EXAMPLES

WALKTHROUGHS = sorted(EXAMPLES.glob("*_walkthrough.py"))


@pytest.mark.parametrize("path", WALKTHROUGHS, ids=lambda path: path.stem)
def test_cells_are_whole_statements_with_words_between(path: Path) -> None:
    cells = re.split(r"^# %%", path.read_text(), flags=re.MULTILINE)[1:]
    words = [cell for cell in cells if cell.startswith(" [markdown]\n")]
    assert len(words) >= 4
    for cell in words:
        assert all(line.startswith("#") for line in cell.splitlines()[1:] if line)
    for cell in cells:
        ast.parse(cell.removeprefix(" [markdown]"))
    assert cells[0] in words, "what it is about comes first"


@pytest.mark.timeout(120)
def test_digits(tmp_path: Path) -> None:
    argv = (sys.executable, "-P", str(EXAMPLES / "digits_walkthrough.py"))
    env = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    run = start(Command("digits", argv, env=env, cwd=tmp_path, log=None))
    try:
        alone = run.expect(r"student with 40 labels: ([0-9.]+)", 60)
        taught = run.expect(r"student with teachers: ([0-9.]+)", 60)
        assert run.wait(30) == 0
    finally:
        run.stop()
    assert float(taught[1]) > float(alone[1]) + 0.1
    assert list(tmp_path.iterdir()) == []


def test_planning(tmp_path: Path) -> None:
    argv = (sys.executable, "-P", str(EXAMPLES / "planning_walkthrough.py"))
    run = start(Command("planning", argv, cwd=tmp_path, log=None))
    try:
        mesh = run.expect(r"planned: (\d+) for 4", 30)
        played = run.expect(r"planned ([\d,]+), played ([\d,]+) samples/s", 30)
        rough = run.expect(r"without (\d+) of (\d+): ([\d,]+) samples/s", 30)
        assert run.wait(30) == 0
    finally:
        run.stop()
    planned, calm, bad = (float(text.replace(",", "")) for text in (*played.groups(), rough[3]))
    assert calm == pytest.approx(planned, rel=0.05)
    assert rough[2] == mesh[1]
    assert bad < 0.85 * calm


def test_sharing(tmp_path: Path) -> None:
    argv = (sys.executable, "-P", str(EXAMPLES / "sharing_walkthrough.py"))
    run = start(Command("sharing", argv, cwd=tmp_path, log=None))
    try:
        waited = run.expect(r"mean waiting time: (\d+) s all or nothing, (\d+) s elastic", 30)
        held = run.expect(r"while it holds 4 of 8 slots, jobs have (\d+) at most", 30)
        assert run.wait(30) == 0
    finally:
        run.stop()
    assert int(waited[2]) < int(waited[1]) / 10
    assert 0 < int(held[1]) <= 4

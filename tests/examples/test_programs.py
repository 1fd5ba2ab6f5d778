"""Examples as a user runs them: walk-throughs, a job with its mesh, the student of a mesh file."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.mesh.local import LocalMesh, TeacherSpec
from edl.runtime.supervise import Command, start
from edl.student import load_job
from edl.teacher.backends.paddle import import_paddle
from edl.tests.examples.test_job_files import EXAMPLES
from edl.tests.waiting import DEADLINE_S


def printed(
    name: str, argv: tuple[object, ...], *patterns: str, cwd: Path | None = None
) -> list[re.Match[str]]:
    """Run a program, which has to succeed; the lines that it prints, in this order."""
    run = start(Command(name, (sys.executable, "-P", *map(str, argv)), log=None, cwd=cwd))
    try:
        found = [run.expect(pattern, DEADLINE_S) for pattern in patterns]
        assert run.wait(DEADLINE_S) == 0
    finally:
        run.stop()
    return found


def walked(name: str, folder: Path, *patterns: str) -> list[re.Match[str]]:
    """What a walk-through prints when it is run in `folder`."""
    return printed(name, (EXAMPLES / f"{name}_walkthrough.py",), *patterns, cwd=folder)


def number(text: str) -> float:
    return float(text.replace(",", ""))


def test_digits_walkthrough(tmp_path: Path) -> None:
    alone, taught, asked = walked(
        "digits",
        tmp_path,
        r"student with 40 labels: ([0-9.]+)",
        r"student with teachers: ([0-9.]+)",
        r"student that also asked about 30 batches: ([0-9.]+)",
    )
    assert float(taught[1]) > float(alone[1]) + 0.1
    assert float(asked[1]) > float(alone[1]) + 0.1
    assert list(tmp_path.iterdir()) == []


def test_planning_walkthrough(tmp_path: Path) -> None:
    mesh, calm, rough = walked(
        "planning",
        tmp_path,
        r"planned: (\d+) teachers for 4 students",
        r"planned ([\d,]+), simulated ([\d,]+) samples/s",
        r"without (\d+) of (\d+): ([\d,]+) samples/s",
    )
    assert number(calm[2]) == pytest.approx(number(calm[1]), rel=0.05)
    assert rough[2] == mesh[1]
    assert number(rough[3]) < 0.85 * number(calm[2])


def test_sharing_walkthrough(tmp_path: Path) -> None:
    waited, held = walked(
        "sharing",
        tmp_path,
        r"mean waiting time: (\d+) s all or nothing, (\d+) s elastic",
        r"while it holds 4 of 8 slots, jobs have (\d+) at most",
    )
    assert int(waited[2]) < int(waited[1]) / 10
    assert 0 < int(held[1]) <= 4


def test_two_ranks_of_ctr_learn_from_a_larger_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log of clicks, a teacher of it, a mesh, and ranks with sparse embeddings."""
    import_paddle()
    monkeypatch.setenv("CLICKS", str(tmp_path))
    job = EXAMPLES / "ctr.py"
    module = load_job(job).functions["model"].__globals__
    module["generate"](tmp_path, 1000)
    module["train_teacher"](tmp_path / "teacher")
    with LocalMesh() as mesh:
        mesh.add_teacher("t", TeacherSpec("ctr", str(tmp_path / "teacher")))
        argv = ("-m", "edl", "student", "train", job, "--steps", 6, "--redis", mesh.url)
        ranks = ("--ranks-per-node", 2, "--total-batch", 200)
        (told,) = printed("node", argv + ranks, r"finished at step 6  log loss ([0-9.]+)")
    assert 0.1 < float(told[1]) < 1.0  # 0.69 knows nothing


def trained(spirals: Any, teacher: Any = None) -> float:
    """Accuracy of the student of `examples/mesh.yaml` with a teacher's labels, or its own alone."""
    student, points = spirals.Student(), spirals.Points()
    for _ in range(8):
        for point, label in points:
            hard = np.eye(spirals.ARMS)[label]
            soft = [] if teacher is None else [teacher({"point": point})["logits"]]
            student.step(point, 0.1 * hard + 0.9 * spirals.softmax(soft[0]) if soft else hard)
    return float(student.accuracy())


def test_a_student_of_spirals_is_better_with_its_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    spirals = importlib.import_module("spirals")
    teacher, inputs = importlib.import_module("spirals_teacher").network()
    assert inputs == ["point:FP32:-1,2"]
    alone, taught = trained(spirals), trained(spirals, teacher)
    assert taught > 0.95
    assert alone < taught - 0.1

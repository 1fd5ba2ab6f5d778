"""The student of `examples/mesh.yaml` learns from its teacher what its own labels do not tell."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
EPOCHS = 8


@pytest.fixture
def spirals(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("spirals")


def trained(spirals: Any, teacher: Any = None) -> float:
    """Accuracy of a student with the labels of a teacher, or with its own alone."""
    student, points = spirals.Student(), spirals.Points()
    for _ in range(EPOCHS):
        for point, label in points:
            hard = np.eye(spirals.ARMS)[label]
            soft = [] if teacher is None else [teacher({"point": point})["logits"]]
            student.step(point, 0.1 * hard + 0.9 * spirals.softmax(soft[0]) if soft else hard)
    return float(student.accuracy())


def test_a_student_with_a_teacher_is_better_than_alone(spirals: Any) -> None:
    teacher, inputs = importlib.import_module("spirals_teacher").network()
    assert inputs == ["point:FP32:-1,2"]
    alone, taught = trained(spirals), trained(spirals, teacher)
    assert taught > 0.95
    assert alone < taught - 0.1

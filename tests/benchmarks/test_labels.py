"""`edl bench labels`: its errors are those of the labels, and its goal can fail."""

from __future__ import annotations

import numpy as np
import pytest

from edl.benchmarks import labels
from edl.proto.forms import Form


def case(text: str, loss_t: float = 1.0, sent_t: float | None = None) -> labels.Case:
    form = Form.parse(text, sent_t)
    assert form is not None
    return labels.Case(form, loss_t)


def test_the_drawn_logits_are_the_same_each_time_and_like_a_classifiers() -> None:
    teacher, student = labels.draw(256)
    np.testing.assert_array_equal(teacher, labels.draw(256)[0])
    probabilities = np.exp(teacher) / np.exp(teacher).sum(-1, keepdims=True)
    assert 0.5 < probabilities.max(-1).mean() < 0.9
    assert 0.4 < (teacher.argmax(-1) == student.argmax(-1)).mean() < 0.9


def test_errors_grow_as_less_travels_and_are_none_for_float32() -> None:
    drawn = labels.draw(64)
    assert max(labels.errors(case("float32"), *drawn)) == pytest.approx(0)
    forms = ("float16", "topk:100", "topk:20")
    divergences, gradients = zip(*(labels.errors(case(f), *drawn) for f in forms), strict=True)
    for found in (divergences, gradients):
        assert 0 < found[0] < found[1] < found[2]
    # A tail that is exact only at temperature 1 costs at another one.
    of_logits = labels.errors(case("topk:20", 4.0), *drawn)
    of_probabilities = labels.errors(case("topk:20", 4.0, 4.0), *drawn)
    assert of_probabilities[0] < of_logits[0]
    assert of_probabilities[1] < of_logits[1]


def test_a_quick_run_fills_the_table_and_judges_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "TEMPERATURES", (1.0,))
    report = labels.run(quick=True)
    assert len(report.rows) == 2 * len(labels.FORMS)
    by_form = {row["form"]: row for row in report.rows if row["sends"] == "logits"}
    assert by_form["topk:20"]["bytes_per_sample"] == 20 * (2 + 2) + 4
    assert by_form["bfloat16"]["saved_percent"] == 50
    assert all(float(row["encode_us"]) > 0 for row in report.rows)
    assert len(report.goals) == 2
    assert report.holds
    monkeypatch.setattr(labels, "LIMIT_OF_BYTES", 0.02)
    assert not labels.run(quick=True).holds

"""A rehearsal calls each function of a job file once, and says what it has found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edl.errors import JobError, UsageError
from edl.student import load_job
from edl.student.job.assembly import assemble
from edl.student.job.rehearsal import Rehearsal, rehearse
from edl.student.job.scores import Scores
from edl.tests.student.job.jobs import GOOD

MORE = """

def metrics():
    return {"error": lambda outputs, labels: (outputs.argmax(-1) != labels).mean(dtype="float32"),
            "right": Right()}


class Right(paddle.metric.Accuracy):
    def compute(self, outputs, labels):
        return super().compute(outputs, labels.reshape([-1, 1]))


def distill():
    from edl.student import Distill

    return Distill("teachers", alpha=0.3, beta=0.7, temperature=4)
"""


pytestmark = [pytest.mark.system, pytest.mark.usefixtures("paddle")]
Write = Callable[..., Path]


def rehearsed(write_job: Write, text: str) -> Rehearsal:
    return rehearse(assemble(load_job(write_job(text))))


def test_a_good_job(write_job: Write) -> None:
    found = rehearsed(write_job, GOOD + MORE)
    assert found.rows == 6
    assert found.loss is not None
    assert found.loss > 0
    assert found.metrics["error"] == pytest.approx(1 - found.metrics["right"])
    text = found.line()
    assert text.startswith(f"loss {found.loss:.6g} in the first batch, of 6 rows; error ")
    assert text.endswith(" in the first batch of evaluation")


def test_a_job_that_only_trains(write_job: Write) -> None:
    found = rehearsed(write_job, GOOD)
    assert dict(found.metrics) == {}
    assert found.line().endswith("in the first batch, of 6 rows")


def test_a_job_without_labels_only_distils(write_job: Write) -> None:
    text = GOOD.replace(', np.zeros(rows, "int64"))', ",)")
    assert rehearsed(write_job, text).line() == "no labels in the first batch, of 6 rows"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Linear(4, 3)", "Linear(5, 3)", r"in model\(\): ValueError"),
        ("Linear(4, 3)", "Linear(4, 3).double", r"in model\(\): must return"),
        ("cross_entropy(outputs, labels)", "cross_entropy(outputs, labels.T[:2])", r"in loss\(\)"),
        ("parameters=parameters", "parameters=[1]", r"in optimizer\(\)"),
        ('"float32"', '"float64"', r"in model\(\)"),
        ("    return [(", "    return [] and [(", "has no batches"),
    ],
)
def test_what_does_not_fit_is_found(write_job: Write, old: str, new: str, message: str) -> None:
    assert old in GOOD
    spec = load_job(write_job(GOOD.replace(old, new)))
    with pytest.raises(UsageError, match=message) as caught:
        rehearse(assemble(spec))
    assert "\n" not in str(caught.value)


def test_a_metric_that_is_no_number_is_told(write_job: Write) -> None:
    text = GOOD + "\n\ndef metrics():\n    return {'all': lambda o, y: 'many'}\n"
    with pytest.raises(JobError, match=r"in metrics\(\): 'all' must give a number"):
        rehearsed(write_job, text)


def test_scores_are_means_over_rows_and_begin_anew(write_job: Write, paddle: Any) -> None:
    text = GOOD + (
        "\n\ndef metrics():\n    return {'mean': lambda o, y: o.mean(),"
        " 'both': Twice(topk=(1, 2))}\n\n\nclass Twice(paddle.metric.Accuracy):\n"
        "    def compute(self, o, y):\n        return super().compute(o, y.reshape([-1, 1]))\n"
    )
    scores = Scores(load_job(write_job(text)))
    assert scores
    assert scores.values() == {}
    for value, rows in ((1.0, 3), (5.0, 1)):
        outputs = paddle.full([rows, 3], value)
        scores.add(outputs, paddle.zeros([rows], "int64"), rows)
    assert scores.values() == {"mean": 2.0, "both_0": 1.0, "both_1": 1.0}
    scores.clear()
    assert scores.values() == {}

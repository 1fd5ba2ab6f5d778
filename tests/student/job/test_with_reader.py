"""What `Distill` tells a reader, what comes back, and what the loss makes of it, for each form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import DistilReader
from edl.proto import tensors
from edl.proto.arena import Array
from edl.student import Distill, Hint
from edl.student.feeding.positions import with_positions
from edl.student.job.batches import split
from edl.student.losses.kl import kl_divergence
from edl.student.losses.mse import logits_mse
from edl.student.losses.step import StepLoss
from edl.student.losses.top_k import top_k_divergence
from edl.tests.scripted_teacher import CLASSES, ScriptedTeacher

pytestmark = pytest.mark.system

ROWS, BATCHES = 4, 3


def label(request: tensors.InferRequest) -> dict[str, Array]:
    x = request.inputs["x"]
    return {"logits": logits_of(x), "map": map_of(x)}


def logits_of(x: Array) -> Array:
    waves = np.sin(x.sum(axis=1, keepdims=True) * np.arange(1, CLASSES + 1))
    return np.asarray(waves, np.float32)


def map_of(x: Array) -> Array:
    return (x[:, :2] * 2).astype("float32")


@pytest.fixture
def teacher() -> Iterator[ScriptedTeacher]:
    server = ScriptedTeacher(label)
    yield server
    server.stop()


def batches(kind: str) -> list[Any]:
    """Batches of an epoch, each row of which has its position."""
    rng = np.random.default_rng(3)
    made: list[Any] = []
    for number in range(BATCHES):
        x = rng.normal(0, 1, (ROWS, 3)).astype("float32")
        y = rng.integers(0, CLASSES, ROWS)
        batch: Any = {"x": x, "label": y} if kind == "dict" else (x, y)
        made.append(with_positions(batch, np.arange(ROWS) + ROWS * number))
    return made


def labelled(distill: Distill, teacher: ScriptedTeacher, kind: str) -> Iterator[Any]:
    """The parts of each batch that a reader has labelled as `distill` says."""
    teachers: Any = [teacher.address]
    if not isinstance(distill.service, str):
        teachers = dict.fromkeys(distill.service, teachers)
    options = distill.reader_options()
    with DistilReader(batches(kind), teachers=teachers, **options) as reader:
        for batch in reader:
            yield split(batch, distill.label_names, positions=True)


FETCHES = ["logits", "map"]
HINT = Hint("map", "hidden", weight=0.5)
TOP_2 = {"loss": "topk", "label_form": "topk:2"}


@pytest.mark.parametrize(
    ("kind", "arguments", "psi"),
    [
        ("tuple", {"temperature": 2.0}, "kl"),
        ("dict", {}, "kl"),
        ("dict", {"fetches": FETCHES, "hints": [HINT], "label_form": "float32"}, "kl"),
        ("tuple", {"fetches": ["map", "logits"], "output": "logits", "loss": "mse"}, "mse"),
        ("tuple", {"fetches": FETCHES, "hints": [HINT], **TOP_2}, "topk"),
        (
            "dict",
            {"output": "logits", **TOP_2, "temperature": 2.0, "teacher_temperature": 2.0},
            "topk",
        ),
        ("tuple", {"service": {"a": 0.5, "b": 0.5}, "output": "logits"}, "kl"),
    ],
    ids=["kl", "kl of a dict", "hints", "mse", "top-k", "top-k at T", "ensemble"],
)
def test_labels_of_a_reader_make_the_loss(
    paddle: Any, teacher: ScriptedTeacher, arguments: dict[str, Any], psi: str, kind: str
) -> None:
    distill = Distill(**{"service": "teachers", "alpha": 0.25, "beta": 0.75, **arguments})
    cross_entropy = paddle.nn.functional.cross_entropy
    loss = StepLoss(lambda outputs, labels: cross_entropy(outputs["logits"], labels), distill, None)
    seen = 0
    for number, parts in enumerate(labelled(distill, teacher, kind)):
        x = parts.forward(lambda x: x)
        student = paddle.concat([x, -x, x, x[:, :1]], axis=1)
        outputs = {"logits": student, "hidden": x[:, :2]}
        t, scores = distill.temperature, paddle.to_tensor(logits_of(x.numpy()))
        if psi == "topk":
            values, indices = (scores / t).topk(2)
            rest = paddle.logsumexp(paddle.sort(scores / t)[:, :-2], axis=-1)
            soft = t**2 * top_k_divergence(student, values, indices, rest, t)
        else:
            soft = logits_mse(student, scores) if psi == "mse" else None
            soft = t**2 * kl_divergence(student, scores, t) if soft is None else soft
        expected = 0.25 * cross_entropy(student, parts.labels) + 0.75 * soft
        if distill.hints:
            expected += 0.5 * (x[:, :2] - 2 * x[:, :2]).square().mean()
        found = loss(outputs, parts.labels, parts.soft, 0).total
        assert float(found) == pytest.approx(float(expected), rel=1e-4)
        assert parts.positions is not None
        assert parts.positions.tolist() == list(range(ROWS * number, ROWS * (number + 1)))
        seen += 1
    assert seen == BATCHES

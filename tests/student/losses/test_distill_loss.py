"""The distillation loss against its closed form, and the two cases in which it must be exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edl.errors import UsageError
from edl.student import DistillLoss

pytestmark = pytest.mark.system

Floats = npt.NDArray[np.float64]

BATCH, CLASSES = 5, 7


def softmax(z: Floats, temperature: float = 1.0) -> Floats:
    e = np.exp((z - z.max(axis=-1, keepdims=True)) / temperature)
    result: Floats = e / e.sum(axis=-1, keepdims=True)
    return result


def batch(seed: int) -> tuple[Floats, npt.NDArray[np.int64], Floats]:
    rng = np.random.default_rng(seed)
    return (
        rng.normal(0, 3, (BATCH, CLASSES)),
        rng.integers(0, CLASSES, BATCH),
        rng.normal(0, 5, (BATCH, CLASSES)),
    )


def value_and_gradient(
    paddle: Any, loss: DistillLoss, student: Floats, hard: Any, soft: Any
) -> tuple[float, Floats]:
    z = paddle.to_tensor(student, stop_gradient=False)
    y = None if hard is None else paddle.to_tensor(hard)
    t = None if soft is None else paddle.to_tensor(soft)
    value = loss(z, y, t)
    value.backward()
    return float(value), z.grad.numpy()


@pytest.mark.parametrize("temperature", [1.0, 2.0, 4.0, 20.0])
@pytest.mark.parametrize(("alpha", "beta"), [(0.3, 0.7), (0.0, 1.0), (1.0, 0.0), (2.0, 0.5)])
def test_closed_form(paddle: Any, alpha: float, beta: float, temperature: float) -> None:
    student, hard, teacher = batch(1)
    p, q = softmax(teacher, temperature), softmax(student, temperature)
    cross_entropy = -np.log(softmax(student)[np.arange(BATCH), hard]).mean()
    divergence = (p * np.log(p / q)).sum(axis=-1).mean()
    onehot = np.eye(CLASSES)[hard]
    # d/dz of T^2 KL(p || softmax(z/T)) is T^2 (q - p) / T: one T is left of the factor.
    gradient = alpha * (softmax(student) - onehot) + beta * temperature * (q - p)

    value, found = value_and_gradient(
        paddle, DistillLoss(alpha, beta, temperature), student, hard, teacher
    )

    assert value == pytest.approx(alpha * cross_entropy + beta * temperature**2 * divergence, 1e-12)
    np.testing.assert_allclose(found, gradient / BATCH, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("made_at", [None, 4.0, 2.0])
def test_probabilities_give_the_loss_of_their_logits(paddle: Any, made_at: float | None) -> None:
    student, hard, teacher = batch(3)
    by_logits = value_and_gradient(paddle, DistillLoss(0.3, 0.7, 4), student, hard, teacher)
    sent = softmax(teacher / (made_at or 1.0))
    loss = DistillLoss(
        0.3, 0.7, 4, soft_label_is="probabilities", soft_label_temperature=made_at or 1.0
    )
    by_probabilities = value_and_gradient(paddle, loss, student, hard, sent)
    assert by_probabilities[0] == pytest.approx(by_logits[0], 1e-10)
    np.testing.assert_allclose(by_probabilities[1], by_logits[1], rtol=1e-8, atol=1e-12)


def test_probabilities_of_exactly_zero_are_finite(paddle: Any) -> None:
    student, _, _ = batch(4)
    one_hot = np.eye(CLASSES)[:BATCH].astype("float32")
    loss = DistillLoss(0, 1, soft_label_is="probabilities")
    value, gradient = value_and_gradient(paddle, loss, student.astype("float32"), None, one_hot)
    expected = -np.log(softmax(student)[np.arange(BATCH), np.arange(BATCH)]).mean()
    assert value == pytest.approx(expected, rel=1e-5)  # KL from a sure teacher is cross entropy
    assert np.isfinite(gradient).all()


def test_no_gradient_reaches_the_teacher(paddle: Any) -> None:
    student, hard, teacher = batch(5)
    soft = paddle.to_tensor(teacher, stop_gradient=False)
    DistillLoss(0.5, 0.5, 2)(
        paddle.to_tensor(student, stop_gradient=False), paddle.to_tensor(hard), soft
    ).backward()
    assert soft.grad is None


def test_soft_labels_of_half_precision_are_taken(paddle: Any) -> None:
    student, _, teacher = batch(6)
    z = paddle.to_tensor(student.astype("float32"))
    full = DistillLoss(0, 1, 4)(z, None, paddle.to_tensor(teacher.astype("float32")))
    half = DistillLoss(0, 1, 4)(z, None, paddle.to_tensor(teacher.astype("float16")))
    assert half.dtype == z.dtype
    assert float(half) == pytest.approx(float(full), rel=1e-2)


def test_leading_dimensions_are_averaged_like_the_batch(paddle: Any) -> None:
    rng = np.random.default_rng(7)
    student, teacher = rng.normal(size=(2, 3, 4, CLASSES)), rng.normal(size=(2, 3, 4, CLASSES))
    hard = rng.integers(0, CLASSES, (2, 3, 4))
    loss = DistillLoss(0.4, 0.6, 3)
    whole, _ = value_and_gradient(paddle, loss, student, hard, teacher)
    flat = (student.reshape(24, -1), hard.reshape(24, 1), teacher.reshape(24, -1))
    assert whole == pytest.approx(value_and_gradient(paddle, loss, *flat)[0], 1e-12)


def test_a_term_of_weight_zero_is_not_computed(paddle: Any) -> None:
    student, hard, teacher = batch(8)
    spoilt = np.full_like(teacher, np.nan)
    assert np.isfinite(
        value_and_gradient(paddle, DistillLoss(1, 0), student, hard, spoilt)[1]
    ).all()
    without_hard = value_and_gradient(paddle, DistillLoss(0, 1, 2), student, None, teacher)
    assert np.isfinite(without_hard[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": -0.1}, "alpha"),
        ({"beta": float("nan")}, "beta"),
        ({"alpha": 0.0, "beta": 0.0}, "nothing to learn"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"soft_label_temperature": 4}, "say soft_label_is='probabilities'"),
        ({"soft_label_is": "probabilities", "soft_label_temperature": 0}, "temperature must be"),
        ({"soft_label_is": "scores"}, "logits"),
    ],
)
def test_settings_that_cannot_work_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DistillLoss(**{"alpha": 1.0, "beta": 1.0, **arguments})


@pytest.mark.parametrize(
    ("hard", "soft", "message"),
    [
        (None, np.zeros((5, 7)), "needs the hard label"),
        (np.zeros(5, "int64"), None, "needs the teacher's soft label"),
        (np.zeros(4, "int64"), np.zeros((5, 7)), r"shape \[5\] or \[5, 1\].*not \[4\]"),
        (np.zeros((5, 7), "int64"), np.zeros((5, 7)), r"not \[5, 7\]"),
        (np.zeros(5), np.zeros((5, 7)), "integers; its dtype is float64"),
        (np.zeros(5, "int64"), np.zeros((5, 6)), r"\[5, 7\], not \[5, 6\]"),
        (np.zeros(5, "int64"), np.zeros((5, 7), "int32"), "floats; its dtype is int32"),
    ],
)
def test_invalid_labels_are_refused(paddle: Any, hard: Any, soft: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        value_and_gradient(paddle, DistillLoss(0.5, 0.5, 4), np.zeros((5, 7)), hard, soft)


def test_logits_without_a_batch_dimension_are_refused(paddle: Any) -> None:
    with pytest.raises(UsageError, match="student_logits"):
        value_and_gradient(paddle, DistillLoss(1, 0), np.zeros(7), np.zeros((), "int64"), None)

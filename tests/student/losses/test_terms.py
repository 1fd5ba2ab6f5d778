"""Each soft term against its closed form in numpy, by value and by gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edl.errors import UsageError
from edl.student.losses import smoothed_cross_entropy
from edl.student.losses.features import feature_l2
from edl.student.losses.kl import kl_divergence
from edl.student.losses.mse import logits_mse
from edl.student.losses.top_k import top_k_divergence

pytestmark = pytest.mark.system

Floats = npt.NDArray[np.float64]
ROWS, CLASSES = 6, 9


def softmax(z: Floats) -> Floats:
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    result: Floats = e / e.sum(axis=-1, keepdims=True)
    return result


def drawn(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).normal(0, 3, shape)


def graded(paddle: Any, term: Any, student: Floats) -> tuple[float, Floats]:
    """The term of these logits, and its gradient."""
    z = paddle.to_tensor(student, stop_gradient=False)
    value = term(z)
    assert value.ndim == 0
    value.backward()
    return float(value), z.grad.numpy()


def top_k(teacher: Floats, k: int) -> tuple[Floats, npt.NDArray[np.int64], Floats]:
    """What a teacher sends of logits: the k greatest, their classes, and the mass of the others."""
    indices = np.argsort(-teacher, axis=-1)[..., :k]
    rest = teacher.copy()
    np.put_along_axis(rest, indices, -np.inf, axis=-1)
    with np.errstate(divide="ignore"):
        tail = np.log(np.exp(rest).sum(axis=-1))
    return np.take_along_axis(teacher, indices, -1), indices.astype(np.int64), tail


def test_mse_of_logits(paddle: Any) -> None:
    student, teacher = drawn(1, ROWS, CLASSES), drawn(2, ROWS, CLASSES)
    value, gradient = graded(paddle, lambda z: logits_mse(z, paddle.to_tensor(teacher)), student)
    assert value == pytest.approx(((student - teacher) ** 2).mean())
    assert gradient == pytest.approx(2 * (student - teacher) / student.size)


@pytest.mark.parametrize("shape", [(ROWS, CLASSES), (2, 3, CLASSES)])
@pytest.mark.parametrize("probabilities", [False, True])
@pytest.mark.parametrize("t", [1.0, 2.5])
def test_top_k_is_the_divergence_of_the_kept_classes_and_one_for_all_others(
    paddle: Any, shape: tuple[int, ...], probabilities: bool, t: float
) -> None:
    student, teacher = drawn(3, *shape), drawn(4, *shape)
    if not probabilities:
        teacher = teacher / t  # as the tail of logits is of temperature 1
    values, indices, tail = top_k(teacher / t if probabilities else teacher, 3)
    p = softmax(teacher / t if probabilities else teacher)
    if probabilities:
        values = np.take_along_axis(p, indices, -1)
        tail = 1 - values.sum(axis=-1)
    q = softmax(student / t)
    kept_p, kept_q = (np.take_along_axis(one, indices, -1) for one in (p, q))
    events = [np.concatenate([k, 1 - k.sum(-1, keepdims=True)], -1) for k in (kept_p, kept_q)]
    expected = (events[0] * (np.log(events[0]) - np.log(events[1]))).sum(-1).mean()
    sent: Any = [paddle.to_tensor(one) for one in (values, indices, tail)]
    kind: Any = "probabilities" if probabilities else "logits"
    value, gradient = graded(
        paddle, lambda z: top_k_divergence(z, sent[0], sent[1], sent[2], t, kind), student
    )
    assert value == pytest.approx(expected)
    # The gradient of a kept class is q - p; the others share what is missing as the student does.
    scale = events[0][..., -1:] / events[1][..., -1:]
    by_hand = q - q * scale
    np.put_along_axis(by_hand, indices, kept_q - kept_p, axis=-1)
    assert gradient == pytest.approx(by_hand / (student.size / CLASSES) / t, abs=1e-9)


@pytest.mark.parametrize("k", [1, 4, CLASSES])
def test_top_k_never_exceeds_the_whole_divergence_and_is_it_with_all_classes(
    paddle: Any, k: int
) -> None:
    student, teacher = (paddle.to_tensor(drawn(seed, ROWS, CLASSES)) for seed in (5, 6))
    parts = [paddle.to_tensor(one) for one in top_k(teacher.numpy(), k)]
    whole = float(kl_divergence(student, teacher))
    part = float(top_k_divergence(student, *parts))
    assert part <= whole + 1e-12
    assert (part == pytest.approx(whole)) == (k == CLASSES)


def test_a_tiny_tail_keeps_its_digits(paddle: Any) -> None:
    student = np.array([[60.0, 0.0, 1.0]], "float32")
    values, indices, tail = top_k(np.array([[3.0, 2.0, 1.0]]), 1)
    parts = [paddle.to_tensor(one) for one in (values, indices, tail)]
    value, gradient = graded(paddle, lambda z: top_k_divergence(z, *parts), student)
    p = softmax(np.array([3.0, 2.0, 1.0]))[0]
    rest = np.log(np.exp([0.0, 1.0]).sum()) - 60  # of the student: 1e-26, which 1 - q has lost
    expected = p * np.log(p) + (1 - p) * (np.log(1 - p) - rest)
    assert value == pytest.approx(expected, rel=1e-5)
    assert np.isfinite(gradient).all()


def test_half_precision_of_top_k_is_computed_in_full(paddle: Any) -> None:
    student = paddle.to_tensor(drawn(7, ROWS, CLASSES).astype("float16"))
    parts = [paddle.to_tensor(one) for one in top_k(drawn(8, ROWS, CLASSES), 2)]
    assert top_k_divergence(student, *parts).dtype == paddle.float32


def test_feature_maps_are_compared_once_they_are_projected(paddle: Any) -> None:
    student, teacher = drawn(9, ROWS, 4, 2, 2), drawn(10, ROWS, 4, 2, 2)
    value, gradient = graded(paddle, lambda s: feature_l2(s, paddle.to_tensor(teacher)), student)
    assert value == pytest.approx(((student - teacher) ** 2).mean())
    assert gradient == pytest.approx(2 * (student - teacher) / student.size)
    narrow = paddle.to_tensor(drawn(11, ROWS, 3).astype("float32"))
    layer = paddle.nn.Linear(3, 5)
    wide = paddle.zeros([ROWS, 5])
    feature_l2(narrow, wide, layer).backward()
    assert layer.weight.grad.abs().sum() > 0
    with pytest.raises(
        UsageError, match=r"'map' of the teachers is \[6, 5\].*is \[6, 3\].*project"
    ):
        feature_l2(narrow, wide, name="map")


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_smoothing_is_cross_entropy_with_smoothed_labels(paddle: Any, smoothing: float) -> None:
    student = drawn(12, ROWS, CLASSES)
    label = np.arange(ROWS) % CLASSES
    target = (1 - smoothing) * np.eye(CLASSES)[label] + smoothing / CLASSES
    value, gradient = graded(
        paddle, lambda z: smoothed_cross_entropy(z, paddle.to_tensor(label), smoothing), student
    )
    assert value == pytest.approx(-(target * np.log(softmax(student))).sum(-1).mean())
    assert gradient == pytest.approx((softmax(student) - target) / ROWS)


def test_what_does_not_fit_is_refused(paddle: Any) -> None:
    logits, other = paddle.zeros([2, 3]), paddle.zeros([2, 4])
    with pytest.raises(UsageError, match="must have the shape"):
        logits_mse(logits, other)
    with pytest.raises(UsageError, match="top-k labels for student_logits"):
        top_k_divergence(logits, other, other.astype("int64"), paddle.zeros([2]))
    with pytest.raises(UsageError, match="indices are integers"):
        top_k_divergence(logits, logits, logits, paddle.zeros([2]))
    with pytest.raises(UsageError, match="from 0 to below 1"):
        smoothed_cross_entropy(logits, paddle.zeros([2], "int64"), 1.0)

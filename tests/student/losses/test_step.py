"""The loss of a step: its terms and weights, and that alpha = 1, beta = 0 is the plain loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edl.errors import UsageError
from edl.scheduler.students.weights import Linear, Steps
from edl.student import Distill, Hint
from edl.student.losses import smoothed_cross_entropy
from edl.student.losses.features import feature_l2
from edl.student.losses.kl import kl_divergence
from edl.student.losses.mse import logits_mse
from edl.student.losses.projectors import PROJECTOR, detach_projectors
from edl.student.losses.step import StepLoss
from edl.student.losses.top_k import top_k_divergence

pytestmark = pytest.mark.system

ROWS, WIDTH, CLASSES = 8, 5, 4


@pytest.fixture
def cross_entropy(paddle: Any) -> Any:
    return paddle.nn.functional.cross_entropy


def tensors(paddle: Any, seed: int = 1) -> tuple[Any, Any, Any]:
    """Logits, hard labels and a teacher's logits."""
    rng = np.random.default_rng(seed)
    logits, teacher = (rng.normal(0, 2, (ROWS, CLASSES)).astype("float32") for _ in range(2))
    label = rng.integers(0, CLASSES, ROWS)
    return tuple(paddle.to_tensor(one) for one in (logits, label, teacher))


def test_the_terms_add_up_by_their_weights(paddle: Any, cross_entropy: Any) -> None:
    logits, label, teacher = tensors(paddle)
    distill = Distill("teachers", alpha=0.3, beta=0.7, temperature=4.0)
    terms = StepLoss(cross_entropy, distill, None)(logits, label, {"": teacher}, 0)
    hard, soft = float(cross_entropy(logits, label)), float(kl_divergence(logits, teacher, 4.0))
    assert float(terms.total) == pytest.approx(0.3 * hard + 0.7 * 16 * soft)
    told = {name: float(value) for name, value in terms.named.items()}
    assert told == pytest.approx({"hard": hard, "soft": soft, "total": float(terms.total)})


@pytest.mark.parametrize("distilled", [None, "beta 0", "schedule"])
def test_alpha_1_and_beta_0_is_plain_training_bit_for_bit(
    paddle: Any, cross_entropy: Any, distilled: str | None
) -> None:
    distill = {
        None: None,
        "beta 0": Distill("teachers", alpha=1, beta=0),
        "schedule": Distill("teachers", alpha=1, beta=Steps((0, 1), (99,))),
    }[distilled]

    def trained(plain: bool) -> list[bytes]:
        paddle.seed(5)
        model = paddle.nn.Sequential(paddle.nn.Linear(WIDTH, 16), paddle.nn.Linear(16, CLASSES))
        loss = StepLoss(cross_entropy, distill, model)
        optimizer = paddle.optimizer.Adam(0.01, parameters=model.parameters())
        rng = np.random.default_rng(2)
        for step in range(10):
            x = paddle.to_tensor(rng.normal(0, 1, (ROWS, WIDTH)).astype("float32"))
            _, label, teacher = tensors(paddle, step)
            logits = model(x)
            if plain:
                total = cross_entropy(logits, label)
            else:
                total = loss(logits, label, {"": teacher}, step).total
            total.backward()
            optimizer.step()
            optimizer.clear_grad()
        return [one.numpy().tobytes() for one in model.parameters()]

    assert trained(False) == trained(True)


def test_weights_follow_their_schedules(paddle: Any, cross_entropy: Any) -> None:
    logits, label, teacher = tensors(paddle)
    distill = Distill("teachers", alpha=Linear(0, 1), beta=Steps((1, 0), (5,)))
    loss = StepLoss(cross_entropy, distill, None, steps_total=11)
    hard, soft = float(cross_entropy(logits, label)), float(kl_divergence(logits, teacher))
    totals = [float(loss(logits, label, {"": teacher}, step).total) for step in (0, 2, 5, 10)]
    assert totals == pytest.approx([soft, 0.2 * hard + soft, 0.5 * hard, hard])
    assert set(loss(logits, label, {"": teacher}, 0).named) == {"soft", "total"}
    assert set(loss(logits, label, {"": teacher}, 10).named) == {"hard", "total"}


def test_a_schedule_until_the_end_needs_an_end(cross_entropy: Any) -> None:
    with pytest.raises(UsageError, match="schedule of beta runs until the end"):
        StepLoss(cross_entropy, Distill("teachers", beta=Linear(1, 0)), None)


def test_a_batch_without_soft_labels_has_its_hard_term(paddle: Any, cross_entropy: Any) -> None:
    logits, label, _ = tensors(paddle)
    distill = Distill("teachers", alpha=0.25, beta=0.75, no_teacher="hard_only")
    loss = StepLoss(cross_entropy, distill, None)
    for soft in ({"": None}, None):
        total = loss(logits, label, soft, 0).total
        assert float(total) == pytest.approx(0.25 * float(cross_entropy(logits, label)))
    soft_only = StepLoss(cross_entropy, Distill("teachers", alpha=0, beta=1), None)
    with pytest.raises(UsageError, match="no term of the loss has a weight in step 7"):
        soft_only(logits, label, {"": None}, 7)


def test_label_smoothing_is_of_the_hard_term(paddle: Any, cross_entropy: Any) -> None:
    logits, label, _ = tensors(paddle)
    distill = Distill("teachers", alpha=1, beta=0, label_smoothing=0.1)
    found = StepLoss(cross_entropy, distill, None)(logits, label, None, 0).total
    expected = cross_entropy(logits, label, label_smoothing=0.1, soft_label=False)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)


def test_a_hint_trains_the_student_and_its_projector(paddle: Any) -> None:
    distill = Distill(
        "teachers",
        alpha=0,
        beta=0,
        fetches=["logits", "map"],
        hints=[Hint("map", 0, 2.0, projector=lambda: paddle.nn.Linear(6, 9))],
    )
    model = paddle.nn.Linear(WIDTH, 6)
    loss = StepLoss(lambda outputs, labels: None, distill, model)
    assert any(name.startswith(PROJECTOR) for name in model.state_dict())
    x, target = paddle.randn([ROWS, WIDTH]), paddle.randn([ROWS, 9])
    terms = loss((model(x),), None, {"logits": None, "map": target}, 0)
    assert float(terms.named["hint map"]) == pytest.approx(float(terms.total) / 2)
    terms.total.backward()
    assert len(model.parameters()) == 4
    assert all(float(one.grad.abs().sum()) > 0 for one in model.parameters())
    detach_projectors(model)
    assert len(model.parameters()) == 2


def test_which_output_is_meant_has_to_be_clear(paddle: Any, cross_entropy: Any) -> None:
    logits, label, teacher = tensors(paddle)
    soft = {"": teacher}
    distill = Distill("teachers", alpha=0, beta=1)
    loss = StepLoss(cross_entropy, distill, None)
    plain = float(loss(logits, label, soft, 0).total)
    for outputs in ((logits, 1), [logits], {"logits": logits, "other": 1}):
        assert float(loss(outputs, label, soft, 0).total) == plain
    named = Distill("teachers", alpha=0, beta=1, student_output="scores")
    with pytest.raises(UsageError, match=r"'scores' is wanted.*a dict of \['logits'\]"):
        StepLoss(cross_entropy, named, None)({"logits": logits}, label, soft, 0)
    with pytest.raises(UsageError, match=r"'scores' is wanted.*one tensor"):
        StepLoss(cross_entropy, named, None)(logits, label, soft, 0)


def test_half_precision_logits_are_compared_in_full(paddle: Any, cross_entropy: Any) -> None:
    logits, label, teacher = tensors(paddle)
    half = logits.astype("bfloat16")
    loss = StepLoss(cross_entropy, Distill("teachers", alpha=0, beta=1), None)
    assert loss(half, label, {"": teacher}, 0).total.dtype == paddle.float32


def test_a_projector_has_to_make_a_layer(paddle: Any, cross_entropy: Any) -> None:
    hint = Hint("map", 0, projector=lambda: 3)
    distill = Distill("teachers", fetches=["logits", "map"], hints=[hint])
    with pytest.raises(UsageError, match=r"a paddle\.nn\.Layer, it made a int"):
        StepLoss(cross_entropy, distill, paddle.nn.Linear(1, 1))


Floats = npt.NDArray[np.float64]
TERM_ROWS, TERM_CLASSES = 6, 9


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
    student, teacher = drawn(1, TERM_ROWS, TERM_CLASSES), drawn(2, TERM_ROWS, TERM_CLASSES)
    value, gradient = graded(paddle, lambda z: logits_mse(z, paddle.to_tensor(teacher)), student)
    assert value == pytest.approx(((student - teacher) ** 2).mean())
    assert gradient == pytest.approx(2 * (student - teacher) / student.size)


@pytest.mark.parametrize("shape", [(TERM_ROWS, TERM_CLASSES), (2, 3, TERM_CLASSES)])
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
    assert gradient == pytest.approx(by_hand / (student.size / TERM_CLASSES) / t, abs=1e-9)


@pytest.mark.parametrize("k", [1, 4, TERM_CLASSES])
def test_top_k_is_at_most_the_whole_divergence(paddle: Any, k: int) -> None:
    student, teacher = (paddle.to_tensor(drawn(seed, TERM_ROWS, TERM_CLASSES)) for seed in (5, 6))
    parts = [paddle.to_tensor(one) for one in top_k(teacher.numpy(), k)]
    whole = float(kl_divergence(student, teacher))
    part = float(top_k_divergence(student, *parts))
    assert part <= whole + 1e-12
    assert (part == pytest.approx(whole)) == (k == TERM_CLASSES)


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
    student = paddle.to_tensor(drawn(7, TERM_ROWS, TERM_CLASSES).astype("float16"))
    parts = [paddle.to_tensor(one) for one in top_k(drawn(8, TERM_ROWS, TERM_CLASSES), 2)]
    assert top_k_divergence(student, *parts).dtype == paddle.float32


def test_feature_maps_are_compared_once_they_are_projected(paddle: Any) -> None:
    student, teacher = drawn(9, TERM_ROWS, 4, 2, 2), drawn(10, TERM_ROWS, 4, 2, 2)
    value, gradient = graded(paddle, lambda s: feature_l2(s, paddle.to_tensor(teacher)), student)
    assert value == pytest.approx(((student - teacher) ** 2).mean())
    assert gradient == pytest.approx(2 * (student - teacher) / student.size)
    narrow = paddle.to_tensor(drawn(11, TERM_ROWS, 3).astype("float32"))
    layer = paddle.nn.Linear(3, 5)
    wide = paddle.zeros([TERM_ROWS, 5])
    feature_l2(narrow, wide, layer).backward()
    assert layer.weight.grad.abs().sum() > 0
    with pytest.raises(
        UsageError, match=r"'map' of the teachers is \[6, 5\].*is \[6, 3\].*project"
    ):
        feature_l2(narrow, wide, name="map")


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_smoothing_is_cross_entropy_with_smoothed_labels(paddle: Any, smoothing: float) -> None:
    student = drawn(12, TERM_ROWS, TERM_CLASSES)
    label = np.arange(TERM_ROWS) % TERM_CLASSES
    target = (1 - smoothing) * np.eye(TERM_CLASSES)[label] + smoothing / TERM_CLASSES
    value, gradient = graded(
        paddle, lambda z: smoothed_cross_entropy(z, paddle.to_tensor(label), smoothing), student
    )
    assert value == pytest.approx(-(target * np.log(softmax(student))).sum(-1).mean())
    assert gradient == pytest.approx((softmax(student) - target) / TERM_ROWS)


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

"""Losses and their terms against closed forms; alpha = 1 and beta = 0 is the plain loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from edl.runtime.errors import UsageError
from edl.scheduler.students.weights import Linear, Steps
from edl.student import Distill, DistillLoss, Hint
from edl.student.losses import smoothed_cross_entropy
from edl.student.losses.step import PROJECTOR, StepLoss, detach_projectors
from edl.student.losses.terms import (
    cast,
    feature_l2,
    kl_divergence,
    logits_mse,
    logits_of_unknown_kind,
    top_k_divergence,
)
from edl.teacher.backends.paddle import import_paddle

pytestmark = pytest.mark.system

Floats = npt.NDArray[np.float64]

ROWS, WIDTH, CLASSES = 6, 5, 9


class Library:
    """What a training loop does, in one framework.

    Attributes:
        framework: paddle or torch.
        layer: its base class of layers.
    """

    def __init__(self, framework: Any) -> None:
        self.framework = framework
        self._is_torch = framework.__name__ == "torch"
        self.layer = "torch.nn.Module" if self._is_torch else "paddle.nn.Layer"

    def tensor(self, array: Any, *, wants_gradient: bool = False) -> Any:
        if self._is_torch:
            kept = wants_gradient and array.dtype.kind == "f"
            return self.framework.tensor(array, requires_grad=kept)
        return self.framework.to_tensor(array, stop_gradient=not wants_gradient)

    def linear(self, width: int, out: int) -> Any:
        return self.framework.nn.Linear(width, out)

    def seed(self, number: int) -> None:
        (self.framework.manual_seed if self._is_torch else self.framework.seed)(number)

    def adam(self, model: Any) -> Any:
        if self._is_torch:
            return self.framework.optim.Adam(model.parameters(), 0.01)
        return self.framework.optimizer.Adam(0.01, parameters=model.parameters())

    def clear(self, optimizer: Any) -> None:
        (optimizer.zero_grad if self._is_torch else optimizer.clear_grad)()


@pytest.fixture(params=["paddle", "torch"])
def lib(request: pytest.FixtureRequest) -> Library:
    return Library(import_paddle() if request.param == "paddle" else pytest.importorskip("torch"))


def softmax(z: Floats, temperature: float = 1.0) -> Floats:
    e = np.exp((z - z.max(axis=-1, keepdims=True)) / temperature)
    result: Floats = e / e.sum(axis=-1, keepdims=True)
    return result


def batch(seed: int) -> tuple[Floats, npt.NDArray[np.int64], Floats]:
    rng = np.random.default_rng(seed)
    student, teacher = rng.normal(0, 3, (ROWS, CLASSES)), rng.normal(0, 5, (ROWS, CLASSES))
    return student, rng.integers(0, CLASSES, ROWS), teacher


def graded(lib: Library, term: Callable[[Any], Any], student: Floats) -> tuple[float, Floats]:
    z = lib.tensor(student, wants_gradient=True)
    value = term(z)
    assert value.ndim == 0
    value.backward()
    return float(value.detach()), z.grad.numpy()


def value_and_gradient(
    lib: Library, loss: DistillLoss, student: Floats, hard: Any, soft: Any
) -> tuple[float, Floats]:
    y = None if hard is None else lib.tensor(hard)
    t = None if soft is None else lib.tensor(soft, wants_gradient=True)
    found = graded(lib, lambda z: loss(z, y, t), student)
    assert t is None or t.grad is None, "no gradient reaches the teacher"
    return found


@pytest.mark.parametrize("temperature", [1.0, 2.0, 4.0, 20.0])
@pytest.mark.parametrize(("alpha", "beta"), [(0.3, 0.7), (0.0, 1.0), (1.0, 0.0), (2.0, 0.5)])
def test_closed_form(lib: Library, alpha: float, beta: float, temperature: float) -> None:
    student, hard, teacher = batch(1)
    p, q = softmax(teacher, temperature), softmax(student, temperature)
    cross_entropy = -np.log(softmax(student)[np.arange(ROWS), hard]).mean()
    divergence = (p * np.log(p / q)).sum(axis=-1).mean()
    onehot = np.eye(CLASSES)[hard]
    # d/dz of T^2 KL(p || softmax(z/T)) is T^2 (q - p) / T: one T is left of the factor.
    gradient = alpha * (softmax(student) - onehot) + beta * temperature * (q - p)
    loss = DistillLoss(alpha, beta, temperature)
    value, found = value_and_gradient(lib, loss, student, hard, teacher)
    assert value == pytest.approx(alpha * cross_entropy + beta * temperature**2 * divergence, 1e-12)
    np.testing.assert_allclose(found, gradient / ROWS, rtol=1e-10, atol=1e-14)


PROBABILITIES: dict[str, Any] = {"soft_label_is": "probabilities"}


@pytest.mark.parametrize(
    ("as_given", "options"),
    [
        (softmax, PROBABILITIES),
        (lambda x: softmax(x / 2), PROBABILITIES | {"soft_label_temperature": 2.0}),
        (softmax, {}),
        (lambda x: np.log(softmax(x)), {}),
        (lambda x: x, {}),
    ],
)
def test_probabilities_give_the_loss_of_their_logits_also_where_nobody_says_what_they_are(
    lib: Library, as_given: Callable[[Floats], Floats], options: dict[str, Any]
) -> None:
    student, hard, teacher = batch(3)
    by_logits = DistillLoss(0.3, 0.7, 4, soft_label_is="logits")
    expected = value_and_gradient(lib, by_logits, student, hard, teacher)
    loss = DistillLoss(0.3, 0.7, 4, **options)
    found = value_and_gradient(lib, loss, student, hard, as_given(teacher))
    assert found[0] == pytest.approx(expected[0], 1e-10)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    ("published", "stated"),
    [("logits", "logits"), ("log-probabilities", "logits"), ("probabilities", "probabilities")],
)
def test_the_loss_follows_what_teachers_publish(
    lib: Library, cross_entropy: Any, published: str, stated: Any
) -> None:
    """The soft label's rows sum to 1, whatever they are."""
    student, _, teacher = batch(0)
    soft = lib.tensor(softmax(teacher))

    def loss_of(distill: Distill, kinds: dict[str, str]) -> float:
        loss = StepLoss(cross_entropy, distill, None)
        loss.on_label_kinds(kinds)
        return float(loss(lib.tensor(student), None, {"": soft}, 0).total)

    options: dict[str, Any] = {"alpha": 0, "beta": 1, "temperature": 4.0}
    told = loss_of(Distill("s", **options), {"scores": published})
    expected = loss_of(Distill("s", soft_label_is=stated, **options), {})
    assert told == pytest.approx(expected, rel=1e-12)
    # What is no distribution is refused by losses that compare such.
    kinds = {"scores": "other", "hidden": "logits"}
    loss = StepLoss(lambda outputs, labels: None, Distill("s", output="scores"), None)
    with pytest.raises(UsageError, match=r"output 'scores' is neither logits nor probabilities"):
        loss.on_label_kinds(kinds)
    loss = StepLoss(cross_entropy, Distill("s", alpha=0, beta=1, loss="mse"), None)
    loss.on_label_kinds({"scores": "other"})
    one = lib.tensor(np.ones((1, 1)))  # also if it looks like a probability
    assert float(loss(one, None, {"": one}, 0).total) == 0


def test_probabilities_may_be_rounded_or_exactly_zero(lib: Library) -> None:
    """Those that travelled in 16 bits arrive as float32, and their rows do not quite sum to 1."""
    given = softmax(4 * np.random.default_rng(5).normal(size=(64, 1000)))
    rounded = given.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.abs(rounded.sum(axis=-1) - 1).max() > 1e-3
    found = logits_of_unknown_kind(lib.tensor(rounded)).numpy()
    np.testing.assert_allclose(found, np.log(rounded), rtol=1e-5)
    student, _, _ = batch(4)
    one_hot = np.eye(CLASSES)[:ROWS].astype("float32")
    loss = DistillLoss(0, 1, **PROBABILITIES)
    value, gradient = value_and_gradient(lib, loss, student.astype("float32"), None, one_hot)
    expected = -np.log(softmax(student)[np.arange(ROWS), np.arange(ROWS)]).mean()
    assert value == pytest.approx(expected, rel=1e-5)  # KL from a sure teacher is cross entropy
    assert np.isfinite(gradient).all()


def test_leading_dimensions_are_averaged_like_the_batch_except_padding(lib: Library) -> None:
    student, hard, teacher = batch(7)
    loss = DistillLoss(0.4, 0.6, 3)
    flat, _ = value_and_gradient(lib, loss, student, hard, teacher)
    parts = (student.reshape(2, 3, -1), hard.reshape(2, 3), teacher.reshape(2, 3, -1))
    assert flat == pytest.approx(value_and_gradient(lib, loss, *parts)[0], 1e-12)
    padding = ((0, 0), (0, 4), (0, 0))
    z, t = (lib.tensor(np.pad(one, padding, mode="wrap")) for one in (parts[0], parts[2]))
    mask, soft = np.arange(7) < [[3], [3]], DistillLoss(0, 1, 3)
    flat = float(soft(lib.tensor(student), None, lib.tensor(teacher)))
    assert float(soft(z, None, t, lib.tensor(mask))) == pytest.approx(flat, 1e-12)
    with pytest.raises(UsageError, match=r"the mask must have the shape \[2, 7\] for"):
        soft(z, None, t, z)


def test_a_term_of_weight_zero_is_not_computed(lib: Library) -> None:
    student, hard, teacher = batch(8)
    spoilt = np.full_like(teacher, np.nan)
    _, gradient = value_and_gradient(lib, DistillLoss(1, 0), student, hard, spoilt)
    assert np.isfinite(gradient).all()
    value, _ = value_and_gradient(lib, DistillLoss(0, 1, 2), student, None, teacher)
    assert np.isfinite(value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": -0.1}, "alpha"),
        ({"beta": float("nan")}, "beta"),
        ({"alpha": 0.0, "beta": 0.0}, "nothing to learn"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"soft_label_temperature": 4}, "set soft_label_is='probabilities'"),
        (PROBABILITIES | {"soft_label_temperature": 0}, "^soft_label_temperature must be"),
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
        (np.zeros(5), np.zeros((5, 7)), "integers, not float64"),
        (np.zeros(5, "int64"), np.zeros((5, 6)), r"\[5, 7\], not \[5, 6\]"),
        (np.zeros(5, "int64"), np.zeros((5, 7), "int32"), "floats, not int32"),
    ],
)
def test_invalid_labels_are_refused(lib: Library, hard: Any, soft: Any, message: str) -> None:
    loss = DistillLoss(0.5, 0.5, 4)
    with pytest.raises(UsageError, match=message):
        value_and_gradient(lib, loss, np.zeros((5, 7)), hard, soft)
    with pytest.raises(UsageError, match="student_logits"):
        loss(lib.tensor(np.zeros(7)))  # without a dimension of the batch


@pytest.fixture
def cross_entropy(lib: Library) -> Any:
    return lib.framework.nn.functional.cross_entropy


def tensors(lib: Library, seed: int = 1) -> tuple[Any, Any, Any]:
    logits, label, teacher = batch(seed)
    return tuple(map(lib.tensor, (logits.astype("f4"), label, teacher.astype("f4"))))


@pytest.mark.parametrize(
    "distill",
    [
        None,
        Distill("teachers", alpha=1, beta=0),
        Distill("teachers", alpha=1, beta=Steps((0, 1), (99,))),
    ],
)
def test_alpha_1_and_beta_0_is_plain_training_bit_for_bit(
    lib: Library, cross_entropy: Any, distill: Distill | None
) -> None:
    def trained(plain: bool) -> list[bytes]:
        lib.seed(5)
        model = lib.framework.nn.Sequential(lib.linear(WIDTH, 16), lib.linear(16, CLASSES))
        loss = StepLoss(cross_entropy, distill, model)
        optimizer = lib.adam(model)
        rng = np.random.default_rng(2)
        for step in range(10):
            x = lib.tensor(rng.normal(0, 1, (ROWS, WIDTH)).astype("float32"))
            _, label, teacher = tensors(lib, step)
            logits = model(x)
            if plain:
                total = cross_entropy(logits, label)
            else:
                total = loss(logits, label, {"": teacher}, step).total
            total.backward()
            optimizer.step()
            lib.clear(optimizer)
        return [one.detach().numpy().tobytes() for one in model.parameters()]

    assert trained(False) == trained(True)


def test_weights_follow_their_schedules(lib: Library, cross_entropy: Any) -> None:
    logits, label, teacher = tensors(lib)
    distill = Distill("teachers", alpha=Linear(0, 1), beta=Steps((1, 0), (5,)))
    loss = StepLoss(cross_entropy, distill, None, steps_total=11)
    hard, soft = float(cross_entropy(logits, label)), float(kl_divergence(logits, teacher))
    for step, expected in (
        (0, {"soft": soft, "total": soft}),
        (2, {"hard": hard, "soft": soft, "total": 0.2 * hard + soft}),
        (5, {"hard": hard, "total": 0.5 * hard}),
        (10, {"hard": hard, "total": hard}),
    ):
        terms = loss(logits, label, {"": teacher}, step)
        told = {name: float(value) for name, value in terms.named.items()}
        assert told == pytest.approx(expected)
        assert float(terms.total) == told["total"]
    with pytest.raises(UsageError, match="schedule of beta runs until the end"):
        StepLoss(cross_entropy, Distill("teachers", beta=Linear(1, 0)), None)


def test_a_batch_without_soft_labels_has_its_hard_term(lib: Library, cross_entropy: Any) -> None:
    logits, label, _ = tensors(lib)
    distill = Distill("teachers", alpha=0.25, beta=0.75, no_teacher="hard_only")
    loss = StepLoss(cross_entropy, distill, None)
    for soft in ({"": None}, None):
        total = loss(logits, label, soft, 0).total
        assert float(total) == pytest.approx(0.25 * float(cross_entropy(logits, label)))
    fades = Distill("teachers", alpha=Steps((1, 0), (5,)), no_teacher="hard_only")
    assert float(StepLoss(cross_entropy, fades, None)(logits, label, None, 5).total) == 0
    soft_only = StepLoss(cross_entropy, Distill("teachers", alpha=0, beta=1), None)
    with pytest.raises(UsageError, match="no term of the loss has a weight in step 7"):
        soft_only(logits, label, {"": None}, 7)


def test_a_hint_trains_the_student_and_its_projector(lib: Library) -> None:
    hint = Hint("map", 0, 2.0, projector=lambda: lib.linear(6, 9))
    distill = Distill("teachers", alpha=0, beta=0, fetches=["logits", "map"], hints=[hint])
    model = lib.linear(WIDTH, 6)
    loss = StepLoss(lambda outputs, labels: None, distill, model)
    assert any(name.startswith(PROJECTOR) for name in model.state_dict())
    x, target = (lib.tensor(drawn(1, ROWS, width).astype("f4")) for width in (WIDTH, 9))
    terms = loss((model(x),), None, {"logits": None, "map": target}, 0)
    assert float(terms.named["hint map"]) == pytest.approx(float(terms.total.detach()) / 2)
    terms.total.backward()
    assert len(list(model.parameters())) == 4
    assert all(float(one.grad.abs().sum()) > 0 for one in model.parameters())
    detach_projectors(model)
    assert len(list(model.parameters())) == 2
    no_layer = Distill("teachers", fetches=["map"], hints=[Hint("map", 0, projector=lambda: 3)])
    with pytest.raises(UsageError, match=f"return a {lib.layer}, not a int"):
        StepLoss(lambda outputs, labels: None, no_layer, model)


def test_which_output_is_meant_has_to_be_clear(lib: Library, cross_entropy: Any) -> None:
    logits, label, teacher = tensors(lib)
    soft = {"": teacher}
    distill = Distill("teachers", alpha=0, beta=1)
    loss = StepLoss(cross_entropy, distill, None)
    plain = float(loss(logits, label, soft, 0).total)
    for outputs in ((logits, 1), [logits], {"logits": logits, "other": 1}):
        assert float(loss(outputs, label, soft, 0).total) == plain
    named = Distill("teachers", alpha=0, beta=1, student_output="scores")
    with pytest.raises(UsageError, match=r"a dict of \['logits'\].*no output 'scores'"):
        StepLoss(cross_entropy, named, None)({"logits": logits}, label, soft, 0)
    with pytest.raises(UsageError, match=r"one tensor.*no output 'scores'"):
        StepLoss(cross_entropy, named, None)(logits, label, soft, 0)


def test_half_precision_is_compared_in_full(lib: Library, cross_entropy: Any) -> None:
    logits, label, teacher = tensors(lib)
    half = cast(logits, "bfloat16")
    loss = StepLoss(cross_entropy, Distill("teachers", alpha=0, beta=1), None)
    assert loss(half, label, {"": teacher}, 0).total.dtype == lib.framework.float32
    kept = [lib.tensor(one) for one in top_k(teacher.numpy(), 2)]
    assert top_k_divergence(half, *kept).dtype == lib.framework.float32
    for name in ("bfloat16", "float16"):
        for term in (kl_divergence, logits_mse, feature_l2):
            assert term(cast(logits, name), teacher).dtype == lib.framework.float32
    wide = lib.tensor(np.full((2, 3), 300.0))  # its square is infinite in float16
    assert float(feature_l2(cast(wide, "float16"), 0 * wide)) == 90_000
    full = DistillLoss(0, 1, 4)(logits, None, teacher)
    by_half_labels = DistillLoss(0, 1, 4)(logits, None, cast(teacher, "float16"))
    assert by_half_labels.dtype == lib.framework.float32
    assert float(by_half_labels) == pytest.approx(float(full), rel=1e-2)


def test_float16_logits_of_many_classes_are_compared_in_full(lib: Library) -> None:
    """Most probabilities are below the smallest normal float16, 6e-5, but matter at T = 4."""
    student, teacher = drawn(1, 8, 1000), drawn(2, 8, 1000)
    logits, soft = (lib.tensor(one.astype("float32")) for one in (student, softmax(teacher)))
    loss = DistillLoss(0, 1, 4, soft_label_is="probabilities")
    expected = float(loss(logits, None, soft))
    assert float(loss(cast(logits, "float16"), None, soft)) == pytest.approx(expected, rel=1e-3)
    lowest = teacher.astype("float32")
    lowest[:, 0] = np.finfo(np.float32).min  # a masked class; it would be -inf in float16
    assert np.isfinite(float(loss(cast(logits, "float16"), None, lib.tensor(lowest))))


def drawn(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).normal(0, 3, shape)


def top_k(teacher: Floats, k: int) -> tuple[Floats, npt.NDArray[np.int64], Floats]:
    """What a teacher sends of logits: the k greatest, their classes, and the mass of the others."""
    indices = np.argsort(-teacher, axis=-1)[..., :k]
    rest = teacher.copy()
    np.put_along_axis(rest, indices, -np.inf, axis=-1)
    with np.errstate(divide="ignore"):
        tail = np.log(np.exp(rest).sum(axis=-1))
    return np.take_along_axis(teacher, indices, -1), indices.astype(np.int64), tail


@pytest.mark.parametrize(
    ("term", "shape"), [(logits_mse, (ROWS, CLASSES)), (feature_l2, (ROWS, 4, 2, 2))]
)
def test_mean_of_squared_differences(lib: Library, term: Any, shape: tuple[int, ...]) -> None:
    student, teacher = drawn(1, *shape), drawn(2, *shape)
    value, gradient = graded(lib, lambda z: term(z, lib.tensor(teacher)), student)
    assert value == pytest.approx(((student - teacher) ** 2).mean())
    assert gradient == pytest.approx(2 * (student - teacher) / student.size)


@pytest.mark.parametrize("shape", [(ROWS, CLASSES), (2, 3, CLASSES)])
@pytest.mark.parametrize("probabilities", [False, True])
@pytest.mark.parametrize("t", [1.0, 2.5])
def test_top_k_is_the_divergence_of_the_kept_classes_and_one_for_all_others(
    lib: Library, shape: tuple[int, ...], probabilities: bool, t: float
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
    sent: Any = [*map(lib.tensor, (values, indices, tail)), t]
    sent.append("probabilities" if probabilities else "logits")
    value, gradient = graded(lib, lambda z: top_k_divergence(z, *sent), student)
    assert value == pytest.approx(expected)
    # The gradient of a kept class is q - p; the others share what is missing as the student does.
    scale = events[0][..., -1:] / events[1][..., -1:]
    by_hand = q - q * scale
    np.put_along_axis(by_hand, indices, kept_q - kept_p, axis=-1)
    assert gradient == pytest.approx(by_hand / (student.size / CLASSES) / t, abs=1e-9)


def test_top_k_of_all_classes_is_the_whole_divergence_and_a_tiny_tail_keeps_its_digits(
    lib: Library,
) -> None:
    all_of, teacher = (lib.tensor(drawn(seed, ROWS, CLASSES)) for seed in (5, 6))
    parts = [lib.tensor(one) for one in top_k(teacher.numpy(), CLASSES)]
    whole = float(kl_divergence(all_of, teacher))
    assert float(top_k_divergence(all_of, *parts)) == pytest.approx(whole)
    student = np.array([[60.0, 0.0, 1.0]], "float32")
    values, indices, tail = top_k(np.array([[3.0, 2.0, 1.0]]), 1)
    parts = [lib.tensor(one) for one in (values, indices, tail)]
    value, gradient = graded(lib, lambda z: top_k_divergence(z, *parts), student)
    p = softmax(np.array([3.0, 2.0, 1.0]))[0]
    rest = np.log(np.exp([0.0, 1.0]).sum()) - 60  # of the student: 1e-26, which 1 - q has lost
    expected = p * np.log(p) + (1 - p) * (np.log(1 - p) - rest)
    assert value == pytest.approx(expected, rel=1e-5)
    assert np.isfinite(gradient).all()


def test_top_k_needs_no_memory_for_k_times_all_classes() -> None:
    """Of a language model with 100,000 tokens, that would be gigabytes for each sequence."""
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes: list[int] = []

    class Sizes(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, operation: Any, _: Any, args: Any, kwargs: Any = None) -> Any:
            result = operation(*args, **(kwargs or {}))
            sizes.extend(one.numel() for one in (result,) if isinstance(one, torch.Tensor))
            return result

    student, teacher = drawn(7, 4, 3000), drawn(8, 4, 3000)
    parts = [torch.tensor(one) for one in top_k(teacher, 20)]
    logits = torch.tensor(student, requires_grad=True)
    with Sizes():
        top_k_divergence(logits, *parts).backward()
    assert max(sizes) == student.size


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_label_smoothing_is_cross_entropy_with_smoothed_labels(
    lib: Library, cross_entropy: Any, smoothing: float
) -> None:
    student = drawn(12, ROWS, CLASSES)
    label = np.arange(ROWS) % CLASSES
    target = (1 - smoothing) * np.eye(CLASSES)[label] + smoothing / CLASSES
    expected = -(target * np.log(softmax(student))).sum(-1).mean()
    y = lib.tensor(label)
    value, gradient = graded(lib, lambda z: smoothed_cross_entropy(z, y, smoothing), student)
    assert value == pytest.approx(expected)
    assert gradient == pytest.approx((softmax(student) - target) / ROWS)
    distill = Distill("teachers", alpha=1, beta=0, label_smoothing=smoothing)
    found = StepLoss(cross_entropy, distill, None)(lib.tensor(student), y, None, 0).total
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_what_does_not_fit_is_refused(lib: Library) -> None:
    logits, other = lib.tensor(np.zeros((2, 3))), lib.tensor(np.zeros((2, 4)))
    with pytest.raises(UsageError, match="must have the shape"):
        logits_mse(logits, other)
    with pytest.raises(UsageError, match=r"'map' .* \[2, 4\].*is \[2, 3\].*projector="):
        feature_l2(logits, other, name="map")
    with pytest.raises(UsageError, match="top-k labels for student_logits"):
        top_k_divergence(logits, other, cast(other, "int64"), lib.tensor(np.zeros(2)))
    with pytest.raises(UsageError, match="integers as indices"):
        top_k_divergence(logits, logits, logits, lib.tensor(np.zeros(2)))
    with pytest.raises(UsageError, match="Paddle or PyTorch is needed, not ndarray"):
        DistillLoss(0, 1)(np.zeros((2, 3)), None, np.zeros((2, 3)))
    with pytest.raises(UsageError, match="from 0 to below 1"):
        smoothed_cross_entropy(logits, lib.tensor(np.zeros(2, "int64")), 1.0)

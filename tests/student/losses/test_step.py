"""The loss of a step: its terms and weights, and that alpha = 1, beta = 0 is the plain loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edl.errors import UsageError
from edl.scheduler.students.weights import Linear, Steps
from edl.student import Distill, Hint
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


def test_each_soft_loss_is_the_one_that_was_named(paddle: Any, cross_entropy: Any) -> None:
    logits, label, teacher = tensors(paddle)
    mse = Distill("teachers", alpha=0, beta=1, loss="mse", temperature=3)
    assert float(StepLoss(cross_entropy, mse, None)(logits, None, {"": teacher}, 0).total) == float(
        logits_mse(logits, teacher)
    )
    top = Distill("teachers", alpha=0, beta=1, loss="topk", label_form="topk:2", fetches=["logits"])
    values, indices = teacher.topk(2)
    tail = paddle.zeros([ROWS])
    soft = dict(zip(top.label_names, (values, indices, tail), strict=True))
    found = StepLoss(cross_entropy, top, None)(logits, None, soft, 0).total
    assert float(found) == float(top_k_divergence(logits, values, indices, tail))
    sent = Distill("teachers", alpha=0, beta=1, temperature=4, teacher_temperature=4)
    p = paddle.nn.functional.softmax(teacher / 4)
    found = StepLoss(cross_entropy, sent, None)(logits, label, {"": p}, 0).total
    assert float(found) == pytest.approx(16 * float(kl_divergence(logits, teacher, 4.0)), rel=1e-4)


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


def test_hints_train_the_student_and_its_projector(paddle: Any, cross_entropy: Any) -> None:
    class Student(paddle.nn.Layer):  # type: ignore[misc]  # paddle has no types
        def __init__(self) -> None:
            super().__init__()
            self.first = paddle.nn.Linear(WIDTH, 6)
            self.last = paddle.nn.Linear(6, CLASSES)

        def forward(self, x: Any) -> Any:
            hidden = self.first(x)
            return {"logits": self.last(hidden), "hidden": hidden}

    distill = Distill(
        "teachers",
        alpha=0,
        beta=0,
        fetches=["logits", "map"],
        hints=[Hint("map", "hidden", 2.0, projector=lambda: paddle.nn.Linear(6, 9))],
    )
    model = Student()
    before = len(model.parameters())
    loss = StepLoss(lambda outputs, labels: None, distill, model)
    assert len(model.parameters()) == before + 2
    assert any(name.startswith(PROJECTOR) for name in model.state_dict())
    optimizer = paddle.optimizer.Adam(0.05, parameters=model.parameters())
    x, target = paddle.randn([ROWS, WIDTH]), paddle.randn([ROWS, 9])
    seen = []
    for step in range(60):
        terms = loss(model(x), None, {"logits": None, "map": target}, step)
        terms.total.backward()
        optimizer.step()
        optimizer.clear_grad()
        seen.append(float(terms.total))
        assert float(terms.named["hint map"]) == pytest.approx(seen[-1] / 2)
    assert seen[-1] < 0.6 * seen[0]
    detach_projectors(model)
    assert len(model.parameters()) == before


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

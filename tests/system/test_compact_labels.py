"""Compact labels from end to end: a real teacher makes them, a real reader has them asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import DistilReader
from edl.proto.arena import Array
from edl.proto.form_arrays import decode, encode
from edl.proto.forms import Form
from edl.tests.system.teacher_process import Teacher, serving
from edl.tests.teacher.linear import CLASSES, weights


class Source:
    """20 batches of 6 rows."""

    def __iter__(self) -> Iterator[Any]:
        for number in range(20):
            x = np.random.default_rng(number).normal(size=(6, 4)).astype(np.float32)
            yield x, np.full(6, number)


@pytest.fixture(scope="module")
def teacher() -> Iterator[Teacher]:
    with serving(model="edl.tests.teacher.linear:good") as teacher:
        yield teacher


def dense(x: Array, form: Form) -> Array:
    """What the training loop should get."""
    sent = encode("logits", x @ weights(), form)
    return decode("logits", sent, form, form.parameters(CLASSES))


@pytest.mark.parametrize(
    ("text", "temperature"), [("topk:2", None), ("topk:2", 2.0), ("bfloat16", None), (None, 4.0)]
)
def test_a_training_loop_gets_dense_labels_whatever_travelled(
    teacher: Teacher, text: str | None, temperature: float | None
) -> None:
    form = Form.parse(text, temperature)
    assert form is not None
    asked: dict[str, Any] = {"label_form": text, "temperature": temperature}
    with DistilReader(Source(), service="m", teachers=[teacher.address], **asked) as reader:
        batches = list(reader)
    assert [int(numbers[0]) for _, numbers, _ in batches] == list(range(20))
    for x, _, soft in batches:
        assert soft.dtype == np.float32
        # The teacher's sums are of other micro-batches: the last bit of a bfloat16 may differ.
        np.testing.assert_allclose(soft, dense(x, form), rtol=1e-2, atol=1e-3)


def test_what_travels_is_compact_and_says_what_it_is(teacher: Teacher) -> None:
    x = np.random.default_rng(1).normal(size=(100, 4)).astype(np.float32)
    asked = {"logits": {"form": "topk:1", "temperature": 2.0}}
    answer = teacher.infer({"x": x}, outputs=["logits"], output_parameters=asked)
    assert sum(array.nbytes for array in answer.outputs.values()) == 100 * (2 + 1 + 4)
    said = {"form": "topk:1", "temperature": 2.0, "classes": CLASSES}
    assert answer.output_parameters == dict.fromkeys(answer.outputs, said)
    winners = (x @ weights()).argmax(-1)
    np.testing.assert_array_equal(answer.outputs["logits.indices"][:, 0], winners)
    total = answer.outputs["logits.values"][:, 0] + answer.outputs["logits.tail"]
    np.testing.assert_allclose(total, 1.0, atol=1e-3)

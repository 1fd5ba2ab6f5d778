"""Labels of the same samples agree whatever rounding did to them; labels of others do not."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.distill_reader.engine.agreement import agree, furthest
from edl.distill_reader.engine.label_parts import labels_of
from edl.distill_reader.label_forms import AS_GIVEN, LabelForms
from edl.proto.arena import Array
from edl.proto.clients import Answer
from edl.proto.form_arrays import encode

ROWS, CLASSES = 8, 50
SAME = 1e-2
FORMS = ["float32", "float16", "bfloat16", "topk:5", "topk:49"]


def logits(seed: int) -> Array:
    normal: Array = np.random.default_rng(seed).normal(0.0, 4.0, (ROWS, CLASSES))
    return normal.astype(np.float32)


def told(array: Array, forms: LabelForms) -> dict[str, Array]:
    """What the training loop would get of a model's output, by way of the wire."""
    form = forms.of("y")
    if form is None:
        return {"y": array}
    answer = Answer(encode("y", array, form), {}, {})
    first = next(iter(answer.outputs))
    parameters = {first: form.parameters(array.shape[-1])}
    answer = Answer(answer.outputs, {}, parameters)
    return dict(chain(labels_of(answer, "y", form, expand=forms.expand)))


@given(
    seed=st.integers(0, 2**32 - 1),
    form=st.sampled_from([None, *FORMS]),
    temperature=st.sampled_from([None, 2.0]),
    expand=st.booleans(),
    noise=st.sampled_from([0.0, 1e-6, 1e-4, 1e-3]),
)
def test_noise_is_no_lie_and_labels_of_other_samples_are(
    seed: int, form: str | None, temperature: float | None, expand: bool, noise: float
) -> None:
    forms = LabelForms.given(form, temperature, expand)
    ours = logits(seed)
    moved = ours + noise * np.sin(1000 * ours)
    assert agree(told(ours, forms), told(moved, forms), SAME, forms)
    for lie in (np.roll(ours, 1, axis=0), np.roll(ours, 1, axis=1), logits(seed + 1), -ours):
        assert not agree(told(ours, forms), told(lie, forms), SAME, forms)
        assert not agree(told(lie, forms), told(ours, forms), SAME, forms)


@pytest.mark.parametrize("expand", [True, False])
def test_classes_at_the_edge_of_top_k_may_change_places(expand: bool) -> None:
    forms = LabelForms.given("topk:3", None, expand)
    ours = np.array([[9, 5.0, 4.0001, 4.0, 0, 0, 0]], np.float32)
    theirs = np.array([[9, 5.0, 4.0, 4.0001, 0, 0, 0]], np.float32)
    one, other = told(ours, forms), told(theirs, forms)
    assert any((one[name] != other[name]).any() for name in one), "they differ in a class"
    assert agree(one, other, SAME, forms)
    far = np.array([[9, 5.0, 1.0, 4.0, 0, 0, 0]], np.float32)
    assert agree(one, told(far, forms), SAME, forms) is False


def test_few_class_ids_may_differ() -> None:
    ids = np.arange(100, dtype=np.int64)
    near = ids.copy()
    near[:5] += 1
    assert agree({"y": ids}, {"y": near}, SAME, AS_GIVEN)
    near[5] += 1
    assert not agree({"y": ids}, {"y": near}, SAME, AS_GIVEN)
    assert not agree({"y": ids[:1]}, {"y": ids[1:2]}, SAME, AS_GIVEN)


def test_what_is_not_of_one_kind_does_not_agree() -> None:
    y = logits(0)
    assert not agree({"y": y}, {"z": y}, SAME, AS_GIVEN)
    assert not agree({"y": y}, {"y": y[:, 1:]}, SAME, AS_GIVEN)
    assert not agree({"y": y}, {"y": y.astype(np.int64)}, SAME, AS_GIVEN)


def test_every_output_has_to_agree() -> None:
    y, z = logits(0), logits(1)
    assert agree({"y": y, "z": z}, {"y": y, "z": z}, SAME, AS_GIVEN)
    assert not agree({"y": y, "z": z}, {"y": y, "z": -z}, SAME, AS_GIVEN)


def test_labels_that_are_all_zero_agree() -> None:
    zero = np.zeros((2, 3), np.float32)
    assert agree({"y": zero}, {"y": zero}, SAME, AS_GIVEN)
    assert not agree({"y": zero}, {"y": zero + 1}, SAME, AS_GIVEN)


@pytest.mark.parametrize("dtypes", [("float32", "float16"), ("bfloat16", "float32")])
def test_teachers_of_unlike_precision_are_held_against_each_other(dtypes: tuple[str, str]) -> None:
    ours, theirs = ({"y": logits(0).astype(dtype)} for dtype in dtypes)
    assert agree(ours, theirs, SAME, AS_GIVEN)
    assert not agree(ours, {"y": -theirs["y"]}, SAME, AS_GIVEN)
    ids = {"y": np.zeros((ROWS, CLASSES), np.int64)}
    assert not agree(ours, ids, SAME, AS_GIVEN)


class TestFurthest:
    def test_the_output_that_differs_most_is_named(self) -> None:
        ours: dict[str, Array] = {"y": logits(0), "ids": np.arange(10)}
        theirs: dict[str, Array] = {"y": ours["y"] * np.float32(0.9), "ids": np.arange(10) // 9 * 9}
        assert furthest(ours, theirs) == ("ids", "0.8 of its values")
        assert furthest(ours, {**theirs, "ids": ours["ids"]}) == ("y", "0.1 of its greatest value")

    def test_what_cannot_be_compared_is_said_so(self) -> None:
        assert furthest({"y": logits(0)}, {"y": logits(0)[:1]}) == ("y", "names or shapes")
        zeros = {"y": np.zeros((2, 2), np.float32)}
        assert furthest(zeros, zeros) == ("y", "0 of its greatest value")

"""What is input, label, position and soft label of a batch, and how one is cut."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from edl.errors import UsageError
from edl.student.job.batches import POSITIONS, split

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("paddle")]

ROWS = 5
X, Y = np.arange(ROWS * 2, dtype="float32").reshape(ROWS, 2), np.arange(ROWS)
AT = np.arange(ROWS) * 10
SOFT, MORE = np.full((ROWS, 3), 0.5, "float32"), np.ones((ROWS, 4), "float32")


def same(tensor: Any, array: Any) -> bool:
    return bool((tensor.numpy() == array).all()) and list(tensor.shape) == list(array.shape)


@pytest.mark.parametrize("kind", [tuple, list])
def test_fields_in_order(kind: Any) -> None:
    parts = split(kind([X, SOFT, Y, AT, MORE, SOFT]), ["map", "logits"], positions=True)
    assert isinstance(parts.inputs, tuple)
    assert same(parts.inputs[0], X)
    assert same(parts.inputs[1], SOFT)
    assert same(parts.labels, Y)
    assert same(parts.soft["map"], MORE)
    assert same(parts.soft["logits"], SOFT)
    assert parts.positions is not None
    assert parts.positions.tolist() == AT.tolist()
    assert parts.rows == ROWS


@pytest.mark.parametrize("label", ["label", "labels"])
def test_fields_by_name(label: str) -> None:
    batch = {"image": X, label: Y, POSITIONS: AT, "logits": SOFT}
    parts = split(batch, ["logits"], positions=True)
    assert isinstance(parts.inputs, dict)
    assert list(parts.inputs) == ["image"]
    assert same(parts.labels, Y)
    assert same(parts.soft["logits"], SOFT)
    assert parts.positions is not None
    assert list(batch) == ["image", label, POSITIONS, "logits"]  # it is the reader's


def test_an_only_output_needs_no_name() -> None:
    assert same(split((X, Y, SOFT), [""]).soft[""], SOFT)
    assert same(split({"x": X, "label": Y, "logits": SOFT}, [""]).soft[""], SOFT)
    assert same(split([{"x": X, "label": Y, "logits": SOFT}], [""]).soft[""], SOFT)


def test_a_batch_may_have_no_labels() -> None:
    assert split((X,)).labels is None
    assert same(split(X).forward(lambda x: x), X)
    parts = split((X, AT, SOFT), [""], positions=True)
    assert parts.labels is None
    assert same(parts.soft[""], SOFT)


def test_soft_labels_that_did_not_come_are_none() -> None:
    assert split((X, Y, None), [""]).soft == {"": None}


def test_bfloat16_becomes_what_paddle_calls_so(paddle: Any) -> None:
    label = split((X, Y, SOFT.astype(ml_dtypes.bfloat16)), [""]).soft[""]
    assert label.dtype == paddle.bfloat16
    assert float(label.sum()) == SOFT.sum()


def test_the_model_is_called_as_the_batch_is(paddle: Any) -> None:
    assert same(split((X, X, Y)).forward(lambda a, b: a + b), 2 * X)
    assert same(split({"b": X, "a": 3 * X, "label": Y}).forward(lambda a, b: a - b), 2 * X)


def test_a_micro_batch_has_its_rows_of_everything() -> None:
    names = [f"row {n}" for n in range(ROWS)]
    batch = {"x": X, "deep": [X, {"y": Y}], "name": names, "scale": np.float32(3) * np.ones(()),
             "label": Y, POSITIONS: AT, "logits": SOFT}  # fmt: skip
    parts = split(batch, ["logits"], positions=True).part(1, 4)
    assert parts.rows == 3
    assert isinstance(parts.inputs, dict)
    assert same(parts.inputs["x"], X[1:4])
    assert same(parts.inputs["deep"][1]["y"], Y[1:4])
    assert parts.inputs["name"] == names[1:4]
    assert float(parts.inputs["scale"]) == 3
    assert same(parts.labels, Y[1:4])
    assert same(parts.soft["logits"], SOFT[1:4])
    assert parts.positions is not None
    assert parts.positions.tolist() == [10, 20, 30]
    assert split((X, Y)).part(3, 99).rows == 2


def test_of_sentences_of_different_lengths_a_micro_batch_has_its_own() -> None:
    sentences = [np.arange(length) for length in (2, ROWS, 1, ROWS, 3)]
    parts = split((X, sentences, Y)).part(1, 4)
    assert isinstance(parts.inputs, tuple)
    assert [one.tolist() for one in parts.inputs[1]] == [one.tolist() for one in sentences[1:4]]


def test_the_micro_batches_together_are_the_batch() -> None:
    whole = split((X, Y))
    cut = [whole.part(start, start + 2) for start in range(0, ROWS, 2)]
    assert [part.rows for part in cut] == [2, 2, 1]
    rows = [part.forward(lambda x: x).numpy() for part in cut]
    assert np.concatenate(rows).tolist() == X.tolist()
    assert whole.part(0, ROWS) is whole


def test_what_is_missing_is_named() -> None:
    with pytest.raises(UsageError, match="lacks the soft label 'logits'"):
        split({"x": X, "label": Y}, ["logits"])
    with pytest.raises(UsageError, match="2 fields, 2 of which should be soft labels"):
        split((X, Y), ["a", "b"])
    with pytest.raises(UsageError, match=POSITIONS):
        split({"x": X, "label": Y}, positions=True)
    with pytest.raises(UsageError, match="labels alone"):
        split({"label": Y})


def test_more_outputs_than_were_named_are_noticed() -> None:
    with pytest.raises(UsageError, match="fetches="):
        split((X, Y, AT, MORE, SOFT), [""], positions=True)

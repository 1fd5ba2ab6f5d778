"""No answer is trusted blindly: each way to be wrong is caught."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edl.distill_reader.engine.answers import (
    Expected,
    device_seconds,
    refuse_what_is_not_finite,
    soft_labels,
)
from edl.errors import BadAnswer, RequestRefused, WrongInstance
from edl.proto.tensors import InferResponse

EXPECTED = Expected("t1", 7, "c", ("logits",), samples=2)
LOGITS = np.zeros((2, 3), np.float32)
GOOD: dict[str, Any] = {"teacher_id": "t1", "incarnation": "7", "content_id": "c"}


def answer(outputs: dict[str, Any], parameters: dict[str, Any] = GOOD) -> InferResponse:
    return InferResponse("m", parameters=parameters, outputs=outputs)


def test_good_answers_give_the_labels_asked_for_in_that_order() -> None:
    expected = replace(EXPECTED, outputs=("b", "a"))
    labels = soft_labels(answer({"a": LOGITS, "b": LOGITS, "c": LOGITS}), expected)
    assert list(labels) == ["b", "a"]
    everything = soft_labels(answer({"a": LOGITS, "c": LOGITS}), replace(EXPECTED, outputs=()))
    assert list(everything) == ["a", "c"]


def test_a_foreign_server_that_names_no_instance_is_believed() -> None:
    assert soft_labels(answer({"logits": LOGITS}, {}), EXPECTED)


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({**GOOD, "teacher_id": "t2"}, WrongInstance),
        ({**GOOD, "incarnation": "8"}, WrongInstance),
        ({**GOOD, "content_id": "d"}, BadAnswer),
    ],
)
def test_another_instance_or_content_is_not_taken(
    parameters: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        soft_labels(answer({"logits": LOGITS}, parameters), EXPECTED)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({}, "lacks"),
        ({"other": LOGITS}, "lacks \\['logits'\\]"),
        ({"logits": np.zeros((3, 3))}, "for a batch of 2"),
        ({"logits": np.float32(1).reshape(())}, "for a batch of 2"),
        ({"logits": np.array([[1.0], [np.nan]])}, "not finite"),
        ({"logits": np.array([[1.0], [np.inf]])}, "not finite"),
        ({"logits": np.array([[b"a"], [b"b"]], dtype=object)}, "BYTES"),
    ],
)
def test_labels_that_cannot_be_labels_are_not_taken(outputs: dict[str, Any], message: str) -> None:
    with pytest.raises(BadAnswer, match=message):
        soft_labels(answer(outputs), EXPECTED)


def test_no_outputs_at_all() -> None:
    with pytest.raises(BadAnswer, match="no outputs"):
        soft_labels(answer({}), replace(EXPECTED, outputs=()))


@pytest.mark.parametrize(
    ("told", "believed"),
    [(0.5, 0.5), (3, 2.0), (0, 2.0), (-1.0, 2.0), ("0.5", 2.0), (float("nan"), 2.0), (None, 2.0)],
)
def test_device_time_is_within_the_time_of_the_request(told: Any, believed: float) -> None:
    assert device_seconds({"device_seconds": told}, 2.0) == believed


def test_inputs_that_are_not_finite_are_named() -> None:
    fine = {"ids": np.array([1, 2]), "text": np.array([b"a"]), "x": LOGITS}
    refuse_what_is_not_finite(fine)
    with pytest.raises(RequestRefused, match="'y'"):
        refuse_what_is_not_finite({**fine, "y": np.array([np.inf], np.float16)})

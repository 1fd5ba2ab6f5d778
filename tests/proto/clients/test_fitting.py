"""What is said of a batch that a model did not declare."""

from __future__ import annotations

import numpy as np
import pytest

from edl.proto.arena import Array
from edl.proto.clients.fitting import misfit
from edl.proto.specs import TensorSpec

DECLARED = (TensorSpec("x", "FP32", (-1, 16)), TensorSpec("mask", "BOOL", (-1,)))


def batch(shape: tuple[int, ...] = (8, 16), dtype: str = "float32") -> dict[str, Array]:
    return {"x": np.zeros(shape, dtype), "mask": np.zeros(8, np.bool_)}


def test_a_batch_as_declared_fits() -> None:
    assert misfit(DECLARED, batch()) == ""
    assert misfit((), batch()) == ""


@pytest.mark.parametrize("shape", [(8, 4, 4), (16,)])
def test_another_number_of_dimensions_is_not_judged(shape: tuple[int, ...]) -> None:
    assert misfit(DECLARED, batch(shape)) == ""


def test_a_datatype_that_does_not_exist_is_not_judged() -> None:
    assert misfit((TensorSpec("x", "TENSOR", (-1, 16)),), batch((8, 9))) == ""


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (batch((8, 9)), "input 'x' is declared as [-1, 16], the batch has [8, 9]"),
        (batch(dtype="float64"), "input 'x' is declared as float32, the batch has float64"),
        ({"y": np.zeros(1)}, "the model takes an input 'x', the batch has ['y']"),
        ({"x": np.zeros((8, 16), np.float32)}, "takes an input 'mask', the batch has ['x']"),
    ],
)
def test_what_differs_is_said(inputs: dict[str, Array], words: str) -> None:
    assert words in misfit(DECLARED, inputs)

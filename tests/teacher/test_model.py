"""Specs: what they admit, how they are written and read, what identity is made of."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.errors import UsageError
from edl.teacher.model import ModelSpec, TensorSpec
from edl.tests.teacher.fakes import SPEC

shapes = st.lists(st.integers(-1, 9).filter(bool), min_size=1, max_size=4).map(tuple)


@pytest.mark.parametrize(
    ("spec", "shape", "admitted"),
    [
        ((-1, 3), (5, 3), True),
        ((-1, 3), (0, 3), True),
        ((-1, 3), (5, 4), False),
        ((-1, 3), (5,), False),
        ((-1, 3), (5, 3, 1), False),
        ((2, -1), (2, 7), True),
        ((2, -1), (3, 7), False),
    ],
)
def test_a_spec_admits(spec: tuple[int, ...], shape: tuple[int, ...], admitted: bool) -> None:
    assert TensorSpec("x", "FP32", spec).admits(shape) is admitted


@given(st.text(min_size=1), st.sampled_from(["FP32", "INT64"]), shapes)
def test_a_tensor_spec_is_read_back_from_its_text(
    name: str, datatype: str, shape: tuple[int, ...]
) -> None:
    spec = TensorSpec(name, datatype, shape)
    assert TensorSpec.parse(str(spec)) == spec


@pytest.mark.parametrize("text", ["", "x", "x:FP32", "x:FP32:", "x:FP32:a", "x:FP32:-2", ":FP32:1"])
def test_a_text_that_is_no_spec_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"image:FP32:-1,3,224,224|has no name"):
        TensorSpec.parse(text)


def test_a_datatype_that_the_protocol_does_not_know_is_refused() -> None:
    with pytest.raises(UsageError, match="'FLOAT'; known are BOOL, UINT8"):
        TensorSpec.parse("x:float:-1,4")


def test_a_model_spec_survives_json() -> None:
    assert ModelSpec.from_json(json.loads(json.dumps(SPEC.to_json()))) == SPEC


def test_the_numerics_id_is_readable_and_depends_on_every_word() -> None:
    assert SPEC.numerics_id.startswith("fake-1-fp32-")
    eight, four = SPEC.in_micro_batches(8), SPEC.in_micro_batches(4)
    ids = {SPEC.numerics_id, eight.numerics_id, four.numerics_id}
    assert len(ids) == 3
    assert eight.numerics_id == SPEC.in_micro_batches(8).numerics_id


def test_a_fixed_batch_decides_the_rows_of_a_run() -> None:
    assert SPEC.rows_per_run(8) == 8
    fixed = replace(SPEC, inputs=(TensorSpec("x", "FP32", (3, 4)),))
    assert fixed.rows_per_run(8) == 3

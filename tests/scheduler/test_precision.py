"""Of float types the narrowest that holds all values of both; nothing else is joined."""

from __future__ import annotations

from itertools import product

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.precision import widest

DTYPES = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}
names = st.sampled_from([*DTYPES, "int32", "int64", "bool"])


@given(names, names, names)
def test_the_order_in_which_answers_come_does_not_matter(one: str, two: str, three: str) -> None:
    assert widest(one, one) == one
    assert widest(one, two) == widest(two, one)
    left, right = widest(one, two), widest(two, three)
    if left is not None and right is not None:
        assert widest(left, three) == widest(one, right)


@pytest.mark.parametrize(("one", "other"), [*product(DTYPES, DTYPES)])
@given(bits=st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=20))
def test_no_value_of_either_loses_a_bit(one: str, other: str, bits: list[int]) -> None:
    name = widest(one, other)
    assert name is not None
    for dtype in (DTYPES[one], DTYPES[other]):
        values = np.repeat(np.array(bits, np.uint16), dtype.itemsize // 2).view(dtype)
        with np.errstate(invalid="ignore"):  # some NaN signal when they are looked at
            values = values[np.isfinite(values)]
        back = values.astype(DTYPES[name]).astype(dtype)
        np.testing.assert_array_equal(back.view(np.uint8), values.view(np.uint8))


def test_no_wider_one_is_taken_than_is_needed() -> None:
    assert widest("float16", "float32") == "float32"
    assert widest("float16", "bfloat16") == "float32"
    assert widest("bfloat16", "float64") == "float64"


@pytest.mark.parametrize("other", ["int32", "int64", "bool", "complex64"])
def test_what_is_no_float_stands_beside_its_like_alone(other: str) -> None:
    assert widest("float32", other) is None
    assert widest(other, other) == other

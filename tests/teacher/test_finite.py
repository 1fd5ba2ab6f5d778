"""NaN and infinity are refused in every floating-point datatype, and nothing else is."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from edl.errors import BadAnswer
from edl.proto.arena import Array
from edl.teacher.finite import check_finite

FLOATS = [np.float16, np.float32, np.float64, ml_dtypes.bfloat16]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused(dtype: type, value: float) -> None:
    labels: Array = np.zeros((4, 5), dtype=dtype)
    labels[2, 3] = value
    with pytest.raises(BadAnswer, match="'logits' holds 1 values of 20 that are NaN") as caught:
        check_finite({"features": np.ones(3), "logits": labels})
    assert caught.value.output == "logits"


@pytest.mark.parametrize("dtype", [*FLOATS, np.int64, np.uint8, np.bool_])
def test_finite_values_pass(dtype: type) -> None:
    check_finite({"logits": np.ones((2, 3), dtype=dtype), "none": np.zeros((0, 3), dtype=dtype)})

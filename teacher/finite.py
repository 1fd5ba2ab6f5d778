"""Refuses answers that hold NaN or infinity: they would spoil a student's weights unnoticed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..errors import BadAnswer
from ..proto.arena import Array


def check_finite(outputs: Mapping[str, Array]) -> None:
    """Raise BadAnswer if an output of a floating-point dtype holds NaN or infinity."""
    for name, array in outputs.items():
        if array.dtype.kind not in "fV":  # V: bfloat16
            continue
        bad = int(array.size - np.count_nonzero(np.isfinite(array)))
        if bad:
            raise BadAnswer(
                f"output {name!r} holds {bad} values of {array.size} that are NaN or infinite",
                name,
            )

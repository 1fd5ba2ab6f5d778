"""One tiny model whose labels anyone can compute, exactly; needs numpy alone.

Servers of every kind serve it: ours by `edl.tests.interop.programs.network:teacher`, others by the
programs beside this file, in environments that have nothing of ours.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any  # what it is in each environment, with or without numpy's stubs

MODEL = "net"
INPUT, OUTPUT = "x", "logits"
FEATURES, CLASSES = 16, 10
#: Names the variable that says how many seconds a batch takes; by default none.
PACE_VARIABLE = "TEST_BATCH_SECONDS"

#: Whole numbers: sums of their products are exact in float32, in whichever order they are added.
_WEIGHTS = np.arange(FEATURES * CLASSES, dtype=np.float32).reshape(FEATURES, CLASSES) % 7 - 3


def labels_of(x: Array) -> Array:
    """Logits of rows of whole numbers: float32 [rows, CLASSES] of float32 [rows, FEATURES]."""
    return x @ _WEIGHTS


def answer(x: Array) -> Array:
    """What a server answers: the labels, in the time that they are to take."""
    time.sleep(float(os.environ.get(PACE_VARIABLE, "0")))
    return labels_of(x)


def teacher() -> tuple[Callable[[dict[str, Array]], dict[str, Array]], list[str]]:
    """A factory for our own backend of functions."""
    return lambda inputs: {OUTPUT: answer(inputs[INPUT])}, [f"{INPUT}:FP32:-1,{FEATURES}"]

"""Models whose device time a test commands: `edl.tests.system.slow_network:network`.

They are functions on numpy arrays, as a framework takes seconds to start. Their labels are
`3 x + 1`, so that a test can say what they must be; a file names the seconds that a sample takes,
and may be written anew while teachers serve.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from edl.proto.arena import Array

MODEL = "edl.tests.system.slow_network:network"
#: Other content, whose labels are `3 x + 2`.
NEXT_MODEL = "edl.tests.system.slow_network:next_network"
#: Names the file that holds the seconds per sample. No EDL_*, which a LocalMesh does not pass on.
SECONDS_VARIABLE = "TEST_SECONDS_PER_SAMPLE"
#: How many times slower than the file says this one teacher is; 1 where it is not set.
FACTOR_VARIABLE = "TEST_SLOWER_BY"
FEATURES = 16

Network = tuple[Callable[[Mapping[str, Array]], dict[str, Array]], list[str]]


def labels_of(x: Array, offset: float = 1.0) -> Array:
    """What any teacher must answer; one of the next content has an `offset` of 2."""
    return x * np.float32(3) + np.float32(offset)


def network() -> Network:
    return _network(1.0)


def next_network() -> Network:
    return _network(2.0)


def write_pace(file: Path, seconds_per_sample: float) -> None:
    """Set the pace of all teachers that read `file`; they read either the old pace or the new."""
    new = file.with_suffix(".new")
    new.write_text(str(seconds_per_sample))
    new.replace(file)


def _network(offset: float) -> Network:
    pace = Path(os.environ[SECONDS_VARIABLE])
    factor = float(os.environ.get(FACTOR_VARIABLE, "1"))

    def forward(inputs: Mapping[str, Array]) -> dict[str, Array]:
        x = inputs["x"]
        time.sleep(float(pace.read_text()) * factor * len(x))
        return {"soft": labels_of(x, offset)}

    return forward, [f"x:FP32:-1,{FEATURES}"]

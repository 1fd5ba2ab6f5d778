"""A process that prints the seconds of a step of `job.py` on its cores."""

from __future__ import annotations

import statistics
import time
from typing import Final

import numpy as np
import paddle

from . import job

_WARM_STEPS: Final = 5
_STEPS: Final = 25


def measure() -> float:
    """Return the median seconds of a step."""
    network = job.model()
    optimizer = job.optimizer(network.parameters())
    data = job.Pictures()
    rows = [data[number] for number in range(job.BATCH)]
    took = []
    for _ in range(_WARM_STEPS + _STEPS):
        began_s = time.perf_counter()
        pictures = paddle.to_tensor(np.stack([picture for picture, _ in rows]))
        classes = paddle.to_tensor(np.array([known for _, known in rows]))
        job.loss(network(pictures), classes).backward()
        optimizer.step()
        optimizer.clear_grad()
        took.append(time.perf_counter() - began_s)
    return statistics.median(took[_WARM_STEPS:])


if __name__ == "__main__":
    print(f"a step takes {measure():.6f} s", flush=True)

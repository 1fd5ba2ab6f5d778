"""The training of `edl bench elastic`: a small network on images, so that each step uses the CPU.

The global batch does not depend on the world size, so with two ranks a step takes half the time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle

from edl.distill_reader import Batched

BATCH = 128
SIDE = 28
_ROWS = 1 << 14  # of an epoch: --steps ends the training


class Pictures:
    """Noise images, labelled by whether the upper half is brighter."""

    def __init__(self) -> None:
        values = np.random.default_rng(0).normal(size=(512, 1, SIDE, SIDE))
        self._pictures = values.astype(np.float32)
        above = self._pictures[:, 0, : SIDE // 2].sum(axis=(1, 2))
        below = self._pictures[:, 0, SIDE // 2 :].sum(axis=(1, 2))
        self._classes = (above > below).astype(np.int64)

    def __len__(self) -> int:
        return _ROWS

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        index = number % len(self._pictures)
        return self._pictures[index], self._classes[index]


def model() -> Any:
    nn = paddle.nn
    return nn.Sequential(
        nn.Conv2D(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2D(2),
        nn.Conv2D(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2D(2),
        nn.Flatten(),
        nn.Linear(32 * (SIDE // 4) ** 2, 2),
    )


def loss(outputs: Any, labels: Any) -> Any:
    return paddle.nn.functional.cross_entropy(outputs, labels)


def optimizer(parameters: Any) -> Any:
    return paddle.optimizer.SGD(0.01, parameters=parameters)


def feed(split: str) -> Any:
    return Batched(Pictures(), BATCH)

"""The job of `edl bench students`: reading a row takes `ROW_S`, on one rank `SLOWER` times as long.

Ranks sleep for this time, so that they do not compete for cores.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import paddle

from edl.distill_reader import Batched

BATCH = 56
ROW_S = 0.002
SLOW_RANK, SLOWER = 2, 3
_ROWS = 1 << 14  # of an epoch: --steps ends the training


class Rows:
    """Points, labelled by the side of a line on which they lie."""

    def __init__(self) -> None:
        self._points = np.random.default_rng(0).normal(size=(256, 8)).astype(np.float32)

    def __len__(self) -> int:
        return _ROWS

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        slow = os.environ.get("PADDLE_TRAINER_ID") == str(SLOW_RANK)  # Paddle's rank variable
        time.sleep(ROW_S * (SLOWER if slow else 1))
        point = self._points[number % len(self._points)]
        return point, np.int64(point[0] > 0)


def model() -> Any:
    return paddle.nn.Linear(8, 2)


def loss(outputs: Any, labels: Any) -> Any:
    return paddle.nn.functional.cross_entropy(outputs, labels)


def optimizer(parameters: Any) -> Any:
    return paddle.optimizer.SGD(0.01, parameters=parameters)


def feed(split: str) -> Any:
    return Batched(Rows(), BATCH)

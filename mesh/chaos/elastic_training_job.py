"""Job file of the elastic training in a chaos run: a linear regression with slow steps."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import paddle
from paddle.io import DataLoader, Dataset

ROWS, FEATURES, BATCH = 4800, 4, 12
STEP_S = 0.2


class RegressionData(Dataset):  # type: ignore[misc]
    """Rows of random features; row i has seed i, and its label is the sum of its features."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        x = np.random.default_rng(index).normal(size=FEATURES).astype(np.float32)
        return x, x.sum(keepdims=True)


def model() -> Any:
    return paddle.nn.Linear(FEATURES, 1)


def loss(outputs: Any, labels: Any) -> Any:
    """Sleep for the duration of a step, and return the mean squared error."""
    time.sleep(STEP_S)
    return paddle.nn.functional.mse_loss(outputs, labels)


def optimizer(parameters: Any) -> Any:
    return paddle.optimizer.SGD(learning_rate=0.05, parameters=parameters)


def feed(split: str) -> Any:
    return DataLoader(RegressionData(), batch_size=BATCH)

"""A small job: a regression that learns something in each step, and says when it is scaled."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle.io import BatchSampler, DataLoader, Dataset

ROWS = int(os.environ.get("EDL_TEST_ROWS", "480"))
#: A file with the seconds of a step: a test may rewrite it while the job runs.
PACE = os.environ.get("EDL_TEST_PACE", "")
FEATURES = 8


class Samples(Dataset):  # type: ignore[misc]
    """Sample i is known by i alone; its label is a fixed function of it."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        x = np.random.default_rng(index).normal(size=FEATURES).astype("float32")
        return x, np.array([x.sum()], "float32")


def model() -> Any:
    return paddle.nn.Linear(FEATURES, 1)


def loss(outputs: Any, labels: Any) -> Any:
    time.sleep(float(Path(PACE).read_text()) if PACE else 0)
    return paddle.nn.functional.mse_loss(outputs, labels)


def optimizer(parameters: Any) -> Any:
    rate = float(os.environ.get("EDL_TEST_RATE", "0.05"))
    return paddle.optimizer.SGD(learning_rate=rate, parameters=parameters)


def feed(split: str) -> Any:
    data = Samples()
    return DataLoader(data, batch_sampler=BatchSampler(data, batch_size=12, shuffle=True))


def metrics() -> Any:
    return {"error": lambda outputs, labels: float((outputs - labels).abs().mean())}


def on_scale(old: int, new: int) -> None:
    if file := os.environ.get("EDL_TEST_SCALED"):
        with open(file, "a") as log:
            log.write(f"{old} {new}\n")

"""`student_job.py` in PyTorch, as its users write it: a DataLoader, AdamW and a cosine."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ROWS = int(os.environ.get("EDL_TEST_ROWS", "480"))
#: A file with the seconds of a step: a test may rewrite it while the job runs.
PACE = os.environ.get("EDL_TEST_PACE", "")
FEATURES = 8


class Samples(Dataset[Any]):  # type: ignore[misc]  # PyTorch has no types here
    """Sample i is known by i alone; its label is a fixed function of it."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        x = np.random.default_rng(index).normal(size=FEATURES).astype("float32")
        return x, np.array([x.sum()], "float32")


def model() -> Any:
    return nn.Linear(FEATURES, 1)


def loss(outputs: Any, labels: Any) -> Any:
    time.sleep(float(Path(PACE).read_text()) if PACE else 0)
    return nn.functional.mse_loss(outputs, labels)


def optimizer(parameters: Any) -> Any:
    adamw = torch.optim.AdamW(parameters, lr=0.05)
    return adamw, torch.optim.lr_scheduler.CosineAnnealingLR(adamw, T_max=600)


def feed(split: str) -> Any:
    return DataLoader(Samples(), batch_size=12, shuffle=True)


def metrics() -> Any:
    return {"error": lambda outputs, labels: (outputs - labels).abs().mean()}


def on_scale(old: int, new: int) -> None:
    if file := os.environ.get("EDL_TEST_SCALED"):
        with open(file, "a") as log:
            log.write(f"{old} {new}\n")

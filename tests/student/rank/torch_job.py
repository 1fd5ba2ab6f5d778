"""A job of PyTorch as its users write them: a data set, a DataLoader, AdamW and a cosine.

`python torch_job.py EPOCHS` trains it by PyTorch alone. Options are environment variables:
EDL_TEST_ROWS=rows of an epoch; EDL_TEST_BLOCK=rank:row whose read never ends; EDL_TEST_RATE=rate;
EDL_TEST_DUMP=folder where each rank writes its parameters after each step; EDL_TEST_PLAIN=1 for a
distillation without a weight; EDL_TEST_TEACH=1 for one by teachers.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from edl.student import Distill

ROWS = int(os.environ.get("EDL_TEST_ROWS", "96"))
BATCH = 16
BLOCKED_RANK, BLOCKED_ROW = map(int, os.environ.get("EDL_TEST_BLOCK", "-1:0").split(":"))


def rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


class Points(Dataset[Any]):  # type: ignore[misc]  # PyTorch has no types here
    """Points of a plane, labelled by the quadrant that they lie in."""

    def __init__(self) -> None:
        self.points = np.random.default_rng(7).normal(size=(ROWS, 8)).astype(np.float32)
        self.read = 0

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        self.read += 1
        if self.read == BLOCKED_ROW and rank() == BLOCKED_RANK:
            threading.Event().wait()
        point = self.points[number]
        return point, 2 * int(point[0] > 0) + int(point[1] > 0)


class Student(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.register_buffer("scale", torch.ones(1).expand(16))
        self.register_buffer("odd", torch.arange(16, dtype=torch.int16)[1::2])
        self.unused = nn.Linear(3, 3)
        self.last = nn.Linear(16, 10)

    def forward(self, points: Any) -> Any:
        return self.last(torch.tanh(self.first(points)))


def model() -> nn.Module:
    return Student()


def loss(outputs: Any, labels: Any) -> Any:
    return nn.functional.cross_entropy(outputs, labels)


def optimizer(parameters: Any) -> Any:
    groups = [
        {"params": [one for one in parameters if one.ndim > 1]},
        {"params": [one for one in parameters if one.ndim == 1], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=float(os.environ.get("EDL_TEST_RATE", "0.02")))
    if folder := os.environ.get("EDL_TEST_DUMP"):
        steps = itertools.count(1)

        def dump(*_: Any) -> None:
            file = Path(folder) / f"rank{rank()}-step{next(steps)}.npz"
            trained = [one for group in adamw.param_groups for one in group["params"]]
            np.savez(file, *(one.detach().numpy() for one in trained))

        adamw.register_step_post_hook(dump)
    return adamw, torch.optim.lr_scheduler.CosineAnnealingLR(adamw, T_max=50)


def feed(split: str) -> Any:
    return DataLoader(Points(), batch_size=BATCH, shuffle=split == "train")


def metrics() -> Any:
    return {"accuracy": lambda outputs, labels: (outputs.argmax(-1) == labels).float().mean()}


def distill() -> Distill | None:
    if os.environ.get("EDL_TEST_TEACH"):
        return Distill(service="quadrants", fetches=["logits"], temperature=2.0)
    if os.environ.get("EDL_TEST_PLAIN"):
        return Distill(service="nobody", alpha=1.0, beta=0.0)
    return None


def on_scale(old: int, new: int) -> None:
    print(f"on_scale({old}, {new})", flush=True)


def train_plainly(epochs: int) -> None:
    from edl.distill_reader.sources import source_of
    from edl.scheduler.students.shards import RankShard

    source = source_of(feed("train"), RankShard(), 0)  # the order of a single rank
    torch.manual_seed(0)
    student = model()
    adamw, schedule = optimizer(list(student.parameters()))
    for epoch in range(epochs):
        reading = source.begin(epoch, 0, None)
        while (batch := next(reading, None)) is not None:
            points, labels = batch
            loss(student(points), labels).backward()
            adamw.step()
            adamw.zero_grad()
            schedule.step()


if __name__ == "__main__":
    train_plainly(int(sys.argv[1]))

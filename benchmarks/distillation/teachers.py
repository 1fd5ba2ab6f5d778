"""Training and export of the teacher of a task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...mesh.demo.models import BATCH_SIZE, LEARNING_RATE, SEED, TeacherModel, load_paddle
from ...student import DistillLoss, Trainer, accuracy
from .task import Task


def train_teacher(task: Task, folder: Path) -> TeacherModel:
    """Train the teacher of `task` on all labels and export it to `folder`."""
    paddle = load_paddle()
    paddle.seed(SEED)
    network: Any = task.teacher()
    steps = task.settings.teacher_epochs * len(task.data.train_label) // BATCH_SIZE
    schedule = paddle.optimizer.lr.CosineAnnealingDecay(LEARNING_RATE, T_max=steps)
    optimizer = paddle.optimizer.Adam(schedule, parameters=network.parameters())
    trainer = Trainer(
        network, DistillLoss(1, 0), optimizer, on_step=[lambda report: schedule.step()]
    )
    trainer.fit(_batches(task, steps), steps=steps)
    network.eval()
    image = task.data.test_image
    spec = paddle.static.InputSpec([None, *image.shape[1:]], str(image.dtype), name="image")
    paddle.jit.save(
        paddle.jit.to_static(network, input_spec=[spec], full_graph=True), str(folder / "teacher")
    )
    reached = accuracy(network, image, task.data.test_label)
    return TeacherModel(folder / "teacher", reached, cached=False)


def _batches(task: Task, steps: int) -> Iterator[tuple[Any, Any]]:
    rng = np.random.default_rng(SEED)
    for _ in range(steps):
        rows = rng.integers(0, len(task.data.train_label), BATCH_SIZE)
        yield task.augmentation(rng, task.data.train_image[rows]), task.data.train_label[rows]

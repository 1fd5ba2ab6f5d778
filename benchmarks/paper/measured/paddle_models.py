"""The student and the teacher in Paddle."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from ....proto.arena import Array
from ....student import DistillLoss
from ....teacher.backends import run_in_micro_batches
from ....teacher.backends.paddle import import_paddle
from ....teacher.backends.selection import open_backend
from ...teachers.models import export_resnet
from .models import ALPHA, BETA, CLASSES, LEARNING_RATE, MICRO_BATCH, TEMPERATURE


class PaddleModels:
    """`StudentAndTeacher` in Paddle; the teacher uses the backend of served teachers.

    Args:
        threads: threads of each model.
        layers: layers of the teacher.
    """

    def __init__(self, threads: int, layers: int) -> None:
        os.environ.update({"OMP_NUM_THREADS": str(threads), "GLOG_minloglevel": "2"})
        self._paddle = paddle = import_paddle()
        from paddle.vision import models

        with tempfile.TemporaryDirectory() as folder:
            path = export_resnet(Path(folder), layers)
            self._teacher = open_backend(path, threads=threads)
        paddle.seed(0)
        self._student = models.mobilenet_v3_small(num_classes=CLASSES)
        self._student.train()
        parameters = self._student.parameters()
        self._optimizer = paddle.optimizer.SGD(LEARNING_RATE, parameters=parameters)
        self._distill = DistillLoss(ALPHA, BETA, TEMPERATURE)
        self._hard = DistillLoss(1.0, 0.0)

    def train(self, image: Array, label: Array, soft: Array | None) -> float:
        tensor = self._paddle.to_tensor
        logits, truth = self._student(tensor(image)), tensor(label)
        if soft is None:
            loss = self._hard(logits, truth)
        else:
            loss = self._distill(logits, truth, tensor(soft))
        loss.backward()
        self._optimizer.step()
        self._optimizer.clear_grad()
        return float(loss)

    def label(self, image: Array) -> Array:
        [name] = [tensor.name for tensor in self._teacher.spec.inputs]
        outputs = run_in_micro_batches(self._teacher.run, {name: image}, MICRO_BATCH)
        [logits] = outputs.values()
        return np.asarray(logits)

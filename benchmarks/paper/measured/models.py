"""A small student and a large teacher in one process, in the installed framework."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from ....proto.arena import Array
from ....runtime.errors import UsageError
from ....student import DistillLoss
from ....student.frameworks import FrameworkName, framework_named
from ....teacher.backends import run_in_micro_batches
from ....teacher.backends.paddle import import_paddle
from ....teacher.backends.selection import open_backend
from ...teachers.models import export_resnet

CLASSES: Final = 1000
#: Weights of the hard and of the soft loss, and the temperature of the soft loss.
ALPHA: Final = 0.5
BETA: Final = 0.5
TEMPERATURE: Final = 2.0
LEARNING_RATE: Final = 1e-3
#: Micro-batch of the teacher on CPUs, where larger ones are no faster.
MICRO_BATCH: Final = 8


def framework() -> FrameworkName:
    """Return the framework to train with: "paddle" if it is installed, else "torch".

    Raises:
        UsageError: neither is installed, or torch without timm.
    """
    if importlib.util.find_spec("paddle") is not None:
        return "paddle"
    if all(importlib.util.find_spec(name) is not None for name in ("torch", "timm")):
        return "torch"
    raise UsageError("a student needs a framework: pip install paddlepaddle, or torch with timm")


class StudentAndTeacher:
    """MobileNetV3-small as the student and a ResNet as the teacher, both with random weights.

    Both run on CPUs. The teacher uses the backend of served teachers. Create this object before the
    framework is imported: Paddle reads the number of threads only during its import.

    Args:
        name: framework of both.
        threads: threads of each model.
        layers: layers of the teacher: 18 or 50.
    """

    def __init__(self, name: FrameworkName, threads: int, layers: int) -> None:
        if name == "paddle":
            self._tensor, student, optimizer = _paddle_student(threads)
            with tempfile.TemporaryDirectory() as folder:
                path = export_resnet(Path(folder), layers)
                self._teacher = open_backend(path, threads=threads)
        else:
            self._tensor, student, optimizer = _torch_student()
            self._teacher = open_backend(f"{__name__}:resnet{layers}", threads=threads)
        student.train()
        self._student = student
        self._optimizer = framework_named(name).optimizer(optimizer)
        self._distill = DistillLoss(ALPHA, BETA, TEMPERATURE, soft_label_is="logits")
        self._hard = DistillLoss(1.0, 0.0)

    def train(self, image: Array, label: Array, soft: Array | None) -> float:
        """Train one step; return the loss as a number, which waits until the step is done.

        Args:
            image: float32 [rows, 3, 224, 224].
            label: int64 [rows, 1].
            soft: logits of the teacher, float32 [rows, 1000]; None: the hard loss alone.
        """
        logits, truth = self._student(self._tensor(image)), self._tensor(label)
        if soft is None:
            loss = self._hard(logits, truth)
        else:
            loss = self._distill(logits, truth, self._tensor(soft))
        loss.backward()
        self._optimizer.step()
        self._optimizer.clear_grad()
        return float(loss.item())

    def label(self, image: Array) -> Array:
        """Return the teacher's logits, float32 [rows, 1000].

        Args:
            image: float32 [rows, 3, 224, 224].
        """
        [name] = [tensor.name for tensor in self._teacher.spec.inputs]
        outputs = run_in_micro_batches(self._teacher.run, {name: image}, MICRO_BATCH)
        [logits] = outputs.values()
        return np.asarray(logits)


def _paddle_student(threads: int) -> tuple[Any, Any, Any]:
    """Return the function that makes tensors of arrays, the student, and its optimizer."""
    os.environ.update({"OMP_NUM_THREADS": str(threads), "GLOG_minloglevel": "2"})
    paddle = import_paddle()
    from paddle.vision import models

    paddle.seed(0)
    student = models.mobilenet_v3_small(num_classes=CLASSES)
    return paddle.to_tensor, student, paddle.optimizer.SGD(LEARNING_RATE, student.parameters())


def _torch_student() -> tuple[Any, Any, Any]:
    """Return the same as `_paddle_student` in PyTorch, on a CPU."""
    import torch

    def tensor(array: Array) -> Any:
        # Arrays of a reader may be read-only, which torch does not support.
        return torch.from_numpy(array if array.flags.writeable else array.copy())

    torch.manual_seed(0)
    student = _network("mobilenetv3_small_100")
    return tensor, student, torch.optim.SGD(student.parameters(), LEARNING_RATE)


def resnet18() -> tuple[Any, list[str]]:
    """Return the smaller teacher, as a factory for `edl teacher serve --model`."""
    return _network("resnet18"), ["x:FP32:-1,3,224,224"]


def resnet50() -> tuple[Any, list[str]]:
    """Return the teacher, as a factory for `edl teacher serve --model`."""
    return _network("resnet50"), ["x:FP32:-1,3,224,224"]


def _network(name: str) -> Any:
    import timm

    return timm.create_model(name, pretrained=False, num_classes=CLASSES)

"""A small student and a large teacher in one process, in the installed framework."""

from __future__ import annotations

import importlib
import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from ....proto.arena import Array
from ....runtime.errors import UsageError
from ....student import DistillLoss
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


class StudentAndTeacher(Protocol):
    """MobileNetV3-small as the student and a ResNet as the teacher, both with random weights."""

    def train(self, image: Array, label: Array, soft: Array | None) -> float:
        """Train one step; return the loss as a number, which waits until the step is done.

        Args:
            image: float32 [rows, 3, 224, 224].
            label: int64 [rows, 1].
            soft: logits of the teacher, float32 [rows, 1000]; None: the hard loss alone.
        """
        ...

    def label(self, image: Array) -> Array:
        """Return the teacher's logits, float32 [rows, 1000].

        Args:
            image: float32 [rows, 3, 224, 224].
        """
        ...


def framework() -> str:
    """Return the framework to train with: "paddle" if it is installed, else "torch".

    Raises:
        UsageError: neither is installed, or torch without timm.
    """
    if importlib.util.find_spec("paddle") is not None:
        return "paddle"
    if all(importlib.util.find_spec(name) is not None for name in ("torch", "timm")):
        return "torch"
    raise UsageError("a student needs a framework: pip install paddlepaddle, or torch with timm")


def create_models(name: str, threads: int, layers: int) -> StudentAndTeacher:
    """Create both models.

    Call it before the framework is imported: Paddle reads the number of threads only then.

    Args:
        name: "paddle" or "torch".
        threads: threads of each model.
        layers: layers of the teacher: 18 or 50.
    """
    return PaddleModels(threads, layers) if name == "paddle" else TorchModels(threads, layers)


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


class TorchModels:
    """`StudentAndTeacher` in PyTorch, both on CPUs.

    Args:
        threads: threads of each model.
        layers: layers of the teacher.
    """

    def __init__(self, threads: int, layers: int) -> None:
        self._torch = torch = importlib.import_module("torch")
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self._teacher = _network(f"resnet{layers}").eval()
        self._student = _network("mobilenetv3_small_100").train()
        self._optimizer = torch.optim.SGD(self._student.parameters(), LEARNING_RATE)

    def train(self, image: Array, label: Array, soft: Array | None) -> float:
        f = self._torch.nn.functional
        logits = self._student(self._tensor(image))
        hard = f.cross_entropy(logits, self._tensor(label)[:, 0])
        loss = hard if soft is None else ALPHA * hard + BETA * self._soft_loss(logits, soft)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return float(loss.item())

    def label(self, image: Array) -> Array:
        pieces = range(0, len(image), MICRO_BATCH)
        with self._torch.inference_mode():
            found = [self._teacher(self._tensor(image[at : at + MICRO_BATCH])) for at in pieces]
        return np.concatenate([logits.numpy() for logits in found])

    def _soft_loss(self, logits: Any, soft: Array) -> Any:
        f, t = self._torch.nn.functional, TEMPERATURE
        ours, theirs = f.log_softmax(logits / t, 1), f.softmax(self._tensor(soft) / t, 1)
        return t * t * f.kl_div(ours, theirs, reduction="batchmean")

    def _tensor(self, array: Array) -> Any:
        # Arrays of a reader may be read-only, which torch does not support.
        return self._torch.from_numpy(array if array.flags.writeable else array.copy())


def resnet50() -> tuple[Any, list[str]]:
    """Return the teacher, as a factory for `edl teacher serve --model`."""
    return _network("resnet50"), ["x:FP32:-1,3,224,224"]


def _network(name: str) -> Any:
    return importlib.import_module("timm").create_model(name, pretrained=False, num_classes=1000)

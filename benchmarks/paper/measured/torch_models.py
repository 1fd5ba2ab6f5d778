"""The student and the teacher in PyTorch, for machines without Paddle."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from ....proto.arena import Array
from .models import ALPHA, BETA, LEARNING_RATE, MICRO_BATCH, TEMPERATURE

STUDENT = "mobilenetv3_small_100"


def resnet50() -> tuple[Any, list[str]]:
    """Return the teacher, as a factory for `edl teacher serve --model`."""
    return _network("resnet50"), ["x:FP32:-1,3,224,224"]


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
        self._student = _network(STUDENT).train()
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


def _network(name: str) -> Any:
    return importlib.import_module("timm").create_model(name, pretrained=False, num_classes=1000)

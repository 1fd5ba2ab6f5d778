"""A small student and a big teacher in one process, by whichever framework there is."""

from __future__ import annotations

import importlib.util
from typing import Final, Protocol

from ....proto.arena import Array
from ....runtime.errors import UsageError

CLASSES: Final = 1000
#: Weights of the hard and of the soft loss, and its temperature.
ALPHA: Final = 0.5
BETA: Final = 0.5
TEMPERATURE: Final = 2.0
LEARNING_RATE: Final = 1e-3
#: Rows that the teacher takes at once on CPUs, where more are no faster.
MICRO_BATCH: Final = 8


class Models(Protocol):
    """MobileNetV3-small to train and a ResNet to ask, both with random weights."""

    def train(self, image: Array, label: Array, soft: Array | None) -> float:
        """One step of the student; the loss, so that all of the step is done.

        Args:
            image: float32 [rows, 3, 224, 224].
            label: int64 [rows, 1].
            soft: logits of the teacher, float32 [rows, 1000]; None: the hard loss alone.
        """
        ...

    def label(self, image: Array) -> Array:
        """The teacher's logits, float32 [rows, 1000]."""
        ...


def framework() -> str:
    """The one to train with: "paddle" where it is installed, else "torch".

    Raises:
        UsageError: neither is, or torch without the models.
    """
    if importlib.util.find_spec("paddle") is not None:
        return "paddle"
    if all(importlib.util.find_spec(name) is not None for name in ("torch", "timm")):
        return "torch"
    raise UsageError("a student needs a framework: pip install paddlepaddle, or torch with timm")


def load(name: str, threads: int, layers: int) -> Models:
    """The two models under a framework of that name, with so many threads.

    It has to be called before the framework is imported: some read the number once.

    Args:
        name: as of `framework`.
        threads: of both models.
        layers: of the teacher: 18 or 50.
    """
    if name == "paddle":
        from .paddle_models import PaddleModels

        return PaddleModels(threads, layers)
    from .torch_models import TorchModels

    return TorchModels(threads, layers)

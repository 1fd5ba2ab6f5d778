"""A small student and a large teacher in one process, in the installed framework."""

from __future__ import annotations

import importlib.util
from typing import Final, Protocol

from ....proto.arena import Array
from ....runtime.errors import UsageError

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
    if name == "paddle":
        from .paddle_models import PaddleModels

        return PaddleModels(threads, layers)
    from .torch_models import TorchModels

    return TorchModels(threads, layers)

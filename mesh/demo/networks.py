"""The two networks: a teacher, and a student of half its size."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

from ...teacher.backends.paddle import import_paddle
from .digits import CLASSES

if TYPE_CHECKING:
    from paddle.nn import Layer


def load_paddle() -> Any:
    """The paddle module, imported quietly; SIGTERM stays with Python."""
    paddle = import_paddle()  # which gives SIGTERM back to the kernel, each time
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
    return paddle


def teacher_network() -> Layer:
    """Five convolutions, a hidden layer of 128; logits [N, 10] of uint8 images [N, 1, 32, 32]."""
    from paddle import nn

    return nn.Sequential(
        grey_scale(),
        nn.Conv2D(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2D(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2D(2),
        nn.Conv2D(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2D(32, 48, 3, padding=1),
        nn.ReLU(),
        nn.Conv2D(48, 48, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2D(4),
        nn.Flatten(),
        nn.Linear(48 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, CLASSES),
    )


def student_network() -> Layer:
    """Two strided convolutions and a hidden layer of 64; logits [N, 10] of uint8 images."""
    from paddle import nn

    return nn.Sequential(
        grey_scale(),
        nn.Conv2D(1, 24, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2D(24, 48, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.MaxPool2D(2),
        nn.Flatten(),
        nn.Linear(48 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, CLASSES),
    )


def grey_scale() -> Layer:
    """A layer that brings uint8 to floats of 0 to 1: images travel in a quarter of the bytes."""
    from paddle import nn

    class GreyScale(nn.Layer):  # type: ignore[misc]  # paddle has no types
        def forward(self, image: Any) -> Any:
            return image.astype("float32") / 255.0

    return GreyScale()

"""Networks of the demo's teacher and student, and a predictor in this process."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...teacher.backends import run_in_micro_batches
from ...teacher.backends.paddle import import_paddle
from ...teacher.backends.selection import open_backend
from .digits import CLASSES, Images

if TYPE_CHECKING:
    from paddle.nn import Layer


def load_paddle() -> Any:
    """Import Paddle without its log, and restore Python's handler of SIGTERM."""
    paddle = import_paddle()  # each time it removes the handler in the system, unknown to Python
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
    return paddle


def teacher_network() -> Layer:
    """Make a CNN of five convolutions: uint8 images [N, 1, 32, 32] to logits [N, 10]."""
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
    """Make a CNN of two strided convolutions: uint8 images [N, 1, 32, 32] to logits [N, 10]."""
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
    """Make a layer that converts uint8 to floats of 0 to 1, so that images can be sent as uint8."""
    from paddle import nn

    class GreyScale(nn.Layer):  # type: ignore[misc]  # paddle has no types
        def forward(self, image: Any) -> Any:
            return image.astype("float32") / 255.0

    return GreyScale()


class Predictor:
    """Labels batches in this process, with the functions and settings of a served teacher.

    The demo's mode "online", in which teacher and student share one process, uses it. Its labels
    are the reference for the labels of the mesh.

    Attributes:
        cpu_s: core-seconds of its calls so far.
    """

    def __init__(
        self, path: Path, *, micro_batch: int, device: str = "cpu", threads: int = 1
    ) -> None:
        self._backend = open_backend(str(path), threads=threads, device=device)
        load_paddle()  # opening the backend removed the handler of SIGTERM again
        self._micro_batch = micro_batch
        self._input = self._backend.spec.inputs[0].name
        self._output = self._backend.spec.outputs[0].name
        self.cpu_s = 0.0

    def __call__(self, image: Images) -> npt.NDArray[np.float32]:
        """Compute the logits [N, 10] of uint8 images [N, 1, size, size]."""
        began = time.process_time()
        outputs: Any = run_in_micro_batches(
            self._backend.run, {self._input: image}, self._micro_batch
        )
        self.cpu_s += time.process_time() - began
        logits: npt.NDArray[np.float32] = outputs[self._output]
        return logits

"""The teacher's model in this process: for Online training, and as the reference for the mesh."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...teacher.backends.selection import open_backend
from ...teacher.microbatch import run_in_micro_batches
from .digits import Images
from .networks import load_paddle


class Predictor:
    """Labels batches by the very functions that a served teacher uses, with the same settings.

    Attributes:
        cpu_s: core-seconds that its calls took so far.
    """

    def __init__(
        self, path: Path, *, micro_batch: int, device: str = "cpu", threads: int = 1
    ) -> None:
        self._backend = open_backend(str(path), threads=threads, device=device)
        load_paddle()  # the backend has imported it too, and so touched the signals
        self._micro_batch = micro_batch
        self._input = self._backend.spec.inputs[0].name
        self._output = self._backend.spec.outputs[0].name
        self.cpu_s = 0.0

    def __call__(self, image: Images) -> npt.NDArray[np.float32]:
        """Logits [N, 10] of uint8 images [N, 1, size, size]."""
        began = time.process_time()
        outputs: Any = run_in_micro_batches(
            self._backend.run, {self._input: image}, self._micro_batch
        )
        self.cpu_s += time.process_time() - began
        logits: npt.NDArray[np.float32] = outputs[self._output]
        return logits

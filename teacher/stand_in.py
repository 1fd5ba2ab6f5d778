"""A cheap model for emulated teachers: their speed matters, their labels do not.

`edl-teacher serve --model edl.teacher.stand_in:images --backend paced,rate=1600`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from ..proto.arena import Array
from ..proto.datatypes import TensorSpec
from .backends import Run

IMAGE: Final = TensorSpec("image", "UINT8", (-1, 3, 224, 224))
_CLASSES: Final = 1000
#: Distance between the pixels that the model uses, along rows and along columns.
_STRIDE: Final = 28


def images() -> tuple[Run, list[TensorSpec]]:
    """Make a model that returns logits of 1000 classes: a fixed projection of UINT8 pixels.

    A batch of 32 takes well below a millisecond. Different images get different logits, so mixed-up
    labels are noticed.

    Returns:
        The model and its inputs.
    """
    pixels = 3 * (224 // _STRIDE) ** 2
    matrix = np.random.default_rng(0).standard_normal((pixels, _CLASSES), dtype=np.float32)
    matrix /= 255 * np.sqrt(np.float32(pixels))

    def label(inputs: Mapping[str, Array]) -> dict[str, Array]:
        sampled = inputs["image"][:, :, ::_STRIDE, ::_STRIDE].astype(np.float32)
        return {"logits": sampled.reshape(len(sampled), -1) @ matrix}

    return label, [IMAGE]

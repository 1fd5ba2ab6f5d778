"""Models of benchmarks: factories for emulated devices, and an exported ResNet."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from ...proto.arena import Array
from ...teacher.backends.paddle import import_paddle

#: Features of a sample of the cheap model.
FEATURES = 64
#: Distance between the pixels that the model of pictures reads.
_STRIDE = 56

#: What a factory returns: a function on arrays, and its inputs as "NAME:DATATYPE:DIMS".
ModelAndInputs = tuple[Callable[[Mapping[str, Array]], dict[str, Array]], list[str]]


def cheap() -> ModelAndInputs:
    """Return a very cheap model, for emulated devices: [N, FEATURES] -> logits [N, 10]."""
    weights = np.random.default_rng(0).standard_normal((FEATURES, 10), np.float32)
    return lambda inputs: {"logits": inputs["x"] @ weights}, [f"x:FP32:-1,{FEATURES}"]


def pictures() -> ModelAndInputs:
    """Return a very cheap model of images: [N, 3, 224, 224] -> logits [N, 1000]."""
    weights = np.random.default_rng(0).standard_normal(
        (3 * (224 // _STRIDE) ** 2, 1000), np.float32
    )

    def forward(inputs: Mapping[str, Array]) -> dict[str, Array]:
        x = inputs["x"]
        return {"logits": x[:, :, ::_STRIDE, ::_STRIDE].reshape(len(x), -1) @ weights}

    return forward, ["x:FP32:-1,3,224,224"]


def export_resnet(folder: Path, layers: int) -> str:
    """Export a Paddle ResNet with random weights; return its path.

    Args:
        folder: folder for the files.
        layers: 18 or 50.
    """
    os.environ.update({"GLOG_minloglevel": "2"})
    paddle = import_paddle()
    from paddle.vision import models

    paddle.seed(0)
    network = getattr(models, f"resnet{layers}")()
    network.eval()
    path = str(folder / f"resnet{layers}")
    spec = paddle.static.InputSpec([None, 3, 224, 224], "float32", "x")
    paddle.jit.save(network, path, input_spec=[spec])
    return path

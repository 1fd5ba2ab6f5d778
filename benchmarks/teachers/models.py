"""The models of the benchmark, as factories and files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from ...proto.arena import Array
from ...teacher.backends.paddle import import_paddle

#: Numbers of a sample that the cheap model takes.
FEATURES = 64
#: Every so many pixels the model of pictures looks at one.
_STRIDE = 56

Factory = tuple[Callable[[Mapping[str, Array]], dict[str, Array]], list[str]]


def cheap() -> Factory:
    """A function that costs nearly nothing, for a device that is emulated."""
    weights = np.random.default_rng(0).standard_normal((FEATURES, 10), np.float32)
    return lambda inputs: {"logits": inputs["x"] @ weights}, [f"x:FP32:-1,{FEATURES}"]


def pictures() -> Factory:
    """The same for pictures of 3 x 224 x 224, with logits of 1000 classes."""
    weights = np.random.default_rng(0).standard_normal(
        (3 * (224 // _STRIDE) ** 2, 1000), np.float32
    )

    def forward(inputs: Mapping[str, Array]) -> dict[str, Array]:
        x = inputs["x"]
        return {"logits": x[:, :, ::_STRIDE, ::_STRIDE].reshape(len(x), -1) @ weights}

    return forward, ["x:FP32:-1,3,224,224"]


def export_resnet(folder: Path, layers: int) -> str:
    """Export a ResNet of random weights with Paddle; returns its path.

    Args:
        folder: where to.
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

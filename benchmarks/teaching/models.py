"""The models of the benchmark, as factories and files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from ...proto.arena import Array
from ...teacher.backends.paddle_runtime import import_paddle

#: Numbers of a sample that the cheap model takes.
FEATURES = 64


def cheap() -> tuple[Callable[[Mapping[str, Array]], dict[str, Array]], list[str]]:
    """A function that costs nearly nothing, for a device that is emulated."""
    weights = np.random.default_rng(0).standard_normal((FEATURES, 10), np.float32)
    return lambda inputs: {"logits": inputs["x"] @ weights}, [f"x:FP32:-1,{FEATURES}"]


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

"""Numpy models of one matrix: a good one, one of other weights, and those that are broken."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import numpy as np

from edl.proto.arena import Array

Function = Callable[[Mapping[str, Array]], dict[str, Array]]
CLASSES = 5


def _made(weights: Array) -> tuple[Function, list[str]]:
    return lambda inputs: {"logits": inputs["x"] @ weights}, ["x:FP32:-1,4"]


def weights(seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(4, CLASSES)).astype(np.float32)


def good() -> tuple[Function, list[str]]:
    return _made(weights())


def softmax() -> tuple[Function, list[str]]:
    made, inputs = good()

    def probabilities(batch: Mapping[str, Array]) -> dict[str, Array]:
        powers = np.exp(made(batch)["logits"])
        return {"logits": powers / powers.sum(axis=-1, keepdims=True)}

    return probabilities, inputs


def fixed_batch() -> tuple[Function, list[str]]:
    return good()[0], ["x:FP32:6,4"]


def of_two_threads() -> tuple[Function, list[str]]:
    """It can be had only where libraries were told so before they were loaded."""
    if os.environ["OMP_NUM_THREADS"] != "2":
        raise ValueError("not two threads")
    return good()


def ends() -> None:
    """As a library that aborts."""
    os._exit(3)


def not_loaded() -> tuple[Function, list[str]]:
    """Its weights have stayed what they were before a file was read: nothing."""
    return _made(np.zeros((4, CLASSES), np.float32))


def undecided() -> tuple[Function, list[str]]:
    """The same for every class."""
    return _made(np.ones((4, CLASSES), np.float32))


def restless() -> tuple[Function, list[str]]:
    """Dropout that was left on: never the same answer."""
    noise = np.random.default_rng()
    made, inputs = good()
    return lambda batch: {"logits": made(batch)["logits"] * noise.random()}, inputs

"""Numpy functions that obey their input, as models for `callable`: a predictor in half a second.

The first number of each row says what happens in the run that it is part of. A run that holds waits
for a file.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from edl.proto.arena import Array

HOLD_VARIABLE = "EDL_TEST_HOLD"
MEMORY_FULL_VARIABLE = "EDL_TEST_MEMORY_FULL"
KILL, HOLD, NAN, LARGE = 1001.0, 1002.0, 1003.0, 1004.0

Function = Callable[[Mapping[str, Array]], dict[str, Array]]


def steered() -> tuple[Function, list[str], list[str]]:
    return _steered, ["x:FP32:-1,4"], ["twice:FP32:-1,4"]


def needs_memory() -> tuple[Function, list[str], list[str]]:
    """As `steered`; out of memory in every run if a file exists when the model is loaded."""
    is_full = Path(os.environ[MEMORY_FULL_VARIABLE]).exists()

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        if is_full:
            raise MemoryError
        return _steered(inputs)

    return run, ["x:FP32:-1,4"], ["twice:FP32:-1,4"]


def widening() -> tuple[Function, list[str], list[str]]:
    """Labels of four times the bytes that the inputs have."""
    return (
        lambda inputs: {"wide": inputs["x"].astype(np.float32)},
        ["x:UINT8:-1,-1"],
        ["wide:FP32:-1,-1"],
    )


def slow() -> tuple[Function, list[str], list[str]]:
    """10 ms for each sample, as of a device that computes one after another."""
    return _slow, ["x:FP32:-1,-1"], ["twice:FP32:-1,-1"]


def always_nan() -> tuple[Function, list[str], list[str]]:
    return lambda inputs: {"y": inputs["x"] * np.float32("nan")}, ["x:FP32:-1,4"], ["y:FP32:-1,4"]


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _steered(inputs: Mapping[str, Array]) -> dict[str, Array]:
    x = inputs["x"]
    orders = set(x[:, 0].tolist())
    if KILL in orders:
        os.kill(os.getpid(), signal.SIGKILL)
    if LARGE in orders and len(x) > 2:
        raise MemoryError
    if HOLD in orders:
        go = Path(os.environ[HOLD_VARIABLE])
        go.with_suffix(f".{os.getpid()}").touch()
        while not go.exists():
            time.sleep(0.005)
    spoilt = x[:, :1] == NAN
    return {"twice": np.where(spoilt, np.float32("nan"), x * 2)}


def _slow(inputs: Mapping[str, Array]) -> dict[str, Array]:
    x = inputs["x"]
    time.sleep(0.01 * len(x))
    return {"twice": x * 2}

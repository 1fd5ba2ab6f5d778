"""Numpy functions that obey their input, as models for `callable`: a predictor in half a second.

The first number of each row says what happens in the run that it is part of. What is waited for by
`HOLD` is a file, so that a test decides for how long; by `SLEEP` it is the row's second number, in
seconds.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from edl.errors import RequestRefused, RetryableError
from edl.proto.arena import Array

HOLD_VARIABLE = "EDL_TEST_HOLD"
KILL, HOLD, NAN, REFUSE, SLEEP = 1001.0, 1002.0, 1003.0, 1004.0, 1006.0
#: From then on every run fails, until the process ends.
LOSE = 1005.0

Function = Callable[[Mapping[str, Array]], dict[str, Array]]


def steered() -> tuple[Function, list[str], list[str]]:
    return _steered, ["x:FP32:-1,4"], ["twice:FP32:-1,4"]


def widening() -> tuple[Function, list[str], list[str]]:
    """Labels of four times the bytes that the inputs have."""
    return _widening, ["x:UINT8:-1,-1"], ["wide:FP32:-1,-1"]


def slow() -> tuple[Function, list[str], list[str]]:
    """10 ms for each sample, as of a device that computes one after another."""
    return _slow, ["x:FP32:-1,-1"], ["twice:FP32:-1,-1"]


def always_nan() -> tuple[Function, list[str], list[str]]:
    return lambda inputs: {"y": inputs["x"] * np.float32("nan")}, ["x:FP32:-1,4"], ["y:FP32:-1,4"]


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


_lost: list[float] = []


def _steered(inputs: Mapping[str, Array]) -> dict[str, Array]:
    x = inputs["x"]
    orders = set(x[:, 0].tolist())
    if LOSE in orders:
        _lost.append(LOSE)
    if _lost:
        raise RetryableError("unspecified launch failure")
    if KILL in orders:
        os.kill(os.getpid(), signal.SIGKILL)
    if HOLD in orders:
        go = Path(os.environ[HOLD_VARIABLE])
        go.with_suffix(f".{os.getpid()}").touch()
        while not go.exists():
            time.sleep(0.005)
    if REFUSE in orders:
        raise RequestRefused("no such word")
    if SLEEP in orders:
        time.sleep(float(x[0, 1]))
    spoilt = x[:, :1] == NAN
    return {"twice": np.where(spoilt, np.float32("nan"), x * 2)}


def _widening(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {"wide": inputs["x"].astype(np.float32)}


def _slow(inputs: Mapping[str, Array]) -> dict[str, Array]:
    x = inputs["x"]
    time.sleep(0.01 * len(x))
    return {"twice": x * 2}

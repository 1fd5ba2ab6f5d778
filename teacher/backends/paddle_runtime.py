"""Paddle as both of its backends use it: imported quietly, errors and dtypes translated."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...errors import ModelError, RequestRefused, RetryableError, WireError
from ...proto.tensors import datatype_of
from ..numerics import instruction_set


def import_paddle() -> Any:
    """The `paddle` module; raises ModelError where it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of tools that only building extensions needs
            import paddle
            import paddle.inference
    except ImportError as error:
        raise ModelError(
            f"paddle cannot be imported ({error}): pip install 'edl-dist[paddle]'"
        ) from None
    # Its handlers print a C++ traceback at SIGTERM, which is how we ask a process to leave.
    paddle.disable_signal_handler()
    return paddle


def check_device(paddle: Any, device: str) -> int | None:
    """The number of the GPU that `device` names, None for the CPU.

    Raises:
        ModelError: there is no such device, or this paddle cannot use it.
    """
    kind, _, number = device.partition(":")
    if kind == "cpu" and not number:
        return None
    if kind != "gpu" or not (number or "0").isdigit():
        raise ModelError(f"unknown device {device!r}: expected cpu or gpu:N")
    if not paddle.is_compiled_with_cuda():
        raise ModelError(
            f"device {device} asked for, but paddle {paddle.__version__} has no GPU support: "
            "install paddlepaddle-gpu"
        )
    index, count = int(number or 0), paddle.device.cuda.device_count()
    if index >= count:
        raise ModelError(f"device {device} asked for, but there are {count} GPUs")
    return index


def numerics(paddle: Any, engine: str, gpu: int | None, threads: int) -> tuple[str, ...]:
    """What bits depend on with Paddle, in words; the micro-batch is added by who chooses it."""
    if gpu is None:
        where = ["cpu", f"threads={threads}", instruction_set()]
    else:
        where = ["gpu", paddle.device.cuda.get_device_name(gpu), f"cuda={paddle.version.cuda()}"]
    return (f"{engine}-{paddle.__version__}", "fp32", *where)


def datatype(dtype: Any) -> str:
    """The protocol's name of a Paddle dtype; raises ModelError where it has none."""
    name = str(dtype).rpartition(".")[2].lower()
    if name == "bfloat16":
        return "BF16"
    try:
        return datatype_of(np.dtype(name))
    except (TypeError, WireError):
        raise ModelError(f"the model uses dtype {name}, which cannot be sent") from None


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Errors of a run, as ours: Paddle raises Python's classes for the classes of its own.

    Raises:
        RetryableError: the device or its memory failed; the same values may do elsewhere.
        RequestRefused: anything else is about the values that were given.
    """
    try:
        yield
    except NotImplementedError as error:  # a RuntimeError, but not one that time or place cures
        raise RequestRefused(f"{doing} failed: {first_line(error)}") from error
    except (MemoryError, OSError, SystemError, RuntimeError) as error:
        raise RetryableError(f"{doing} failed: {first_line(error)}") from error
    except Exception as error:  # an eager network is the user's code, which may raise anything
        raise RequestRefused(f"{doing} failed: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """What a Paddle error says, without the C++ place it came from."""
    lines = [line.strip() for line in str(error).splitlines()]
    notes = ("In user code", "[Hint", "[operator", "---")
    said = [line for line in lines if line and not line.startswith(notes)]
    return said[0] if said else type(error).__name__

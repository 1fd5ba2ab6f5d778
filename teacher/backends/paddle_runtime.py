"""Paddle as both of its backends use it: imported quietly, errors and dtypes translated."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager
from typing import Any

from ...errors import ModelError
from ...extras import install_command
from . import framework
from .declared import datatype_named
from .framework import check_gpu, gpu_of, instruction_set


def import_paddle() -> Any:
    """The `paddle` module; raises ModelError where it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of tools that only building extensions needs
            import paddle
            import paddle.inference
    except ImportError as error:
        raise ModelError(
            f"paddle cannot be imported ({error}): {install_command('paddle')}"
        ) from None
    # Its handlers print a C++ traceback at SIGTERM, which is how we ask a process to leave.
    paddle.disable_signal_handler()
    return paddle


def check_device(paddle: Any, device: str) -> int | None:
    """The number of the GPU that `device` names, None for the CPU.

    Raises:
        ModelError: there is no such device, or this paddle cannot use it.
    """
    if (index := gpu_of(device)) is None:
        return None
    if not paddle.is_compiled_with_cuda():
        raise ModelError(
            f"device {device} asked for, but paddle {paddle.__version__} has no GPU support: "
            "install paddlepaddle-gpu"
        )
    check_gpu(device, index, paddle.device.cuda.device_count())
    return index


def numerics(
    paddle: Any, engine: str, gpu: int | None, threads: int, precision: str = "fp32"
) -> tuple[str, ...]:
    """What bits depend on with Paddle, in words; the micro-batch is added by who chooses it."""
    if gpu is None:
        where = ["cpu", f"threads={threads}", instruction_set()]
    else:
        where = ["gpu", paddle.device.cuda.get_device_name(gpu), f"cuda={paddle.version.cuda()}"]
    return (f"{engine}-{paddle.__version__}", precision, *where)


def datatype(dtype: Any) -> str:
    """The protocol's name of a Paddle dtype; raises ModelError where it has none."""
    return datatype_named(str(dtype).rpartition(".")[2].lower())


def translated(doing: str) -> AbstractContextManager[None]:
    """Errors of a run, as ours: Paddle raises Python's classes for the classes of its own.

    Raises:
        RetryableError: the device or its memory failed; the same values may do elsewhere.
        RequestRefused: anything else is about the values that were given.
    """
    return framework.translated(doing, _may_pass, first_line)


def first_line(error: BaseException) -> str:
    """What a Paddle error says, without the C++ place it came from."""
    lines = [line.strip() for line in str(error).splitlines()]
    notes = ("In user code", "[Hint", "[operator", "---")
    said = [line for line in lines if line and not line.startswith(notes)]
    return said[0] if said else type(error).__name__


def _may_pass(error: Exception) -> bool:
    """NotImplementedError is a RuntimeError, but not one that time or place cures."""
    return isinstance(error, MemoryError | OSError | SystemError | RuntimeError) and not isinstance(
        error, NotImplementedError
    )

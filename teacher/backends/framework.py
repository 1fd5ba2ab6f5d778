"""Shared code of all backends: devices, precision, numerics, and translation of errors."""

from __future__ import annotations

import platform
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ...proto.arena import Array
from ...runtime.errors import (
    DeviceOutOfMemory,
    EdlError,
    ModelError,
    RequestRefused,
    RetryableError,
)
from . import Backend
from .tensor_specs import probe_batch

#: Words in frameworks' errors about memory or devices, for errors without a class of their own.
_MEMORY_WORDS = ("out of memory", "allocate", "alloc_", "bad_alloc")
_DEVICE_WORDS = ("cuda", "cudnn", "cublas")


def is_device_error(error: Exception) -> bool:
    """Whether `error` is about the device or its memory, not about the inputs."""
    if isinstance(error, MemoryError | OSError | SystemError):
        return True
    text = str(error).lower()
    return any(word in text for word in (*_MEMORY_WORDS, *_DEVICE_WORDS))


@contextmanager
def translate_errors(
    subject: str,
    is_transient: Callable[[Exception], bool] = is_device_error,
    line: Callable[[BaseException], str] = lambda error: first_line(error),
) -> Iterator[None]:
    """Convert exceptions of the block to EdlErrors; EdlErrors pass unchanged.

    Args:
        subject: what failed, for the message "... failed"; such as "the model".
        is_transient: returns whether the same inputs may succeed elsewhere or later.
        line: extracts one line of text from an error.

    Raises:
        DeviceOutOfMemory: the device has too little memory.
        RetryableError: the device failed.
        RequestRefused: any other exception, because it is about the inputs.
    """
    try:
        yield
    except EdlError:
        raise
    except Exception as error:  # frameworks and the user's code may raise anything
        error_class: type[EdlError] = RequestRefused
        if is_transient(error):
            text = str(error).lower()
            is_memory = isinstance(error, MemoryError) or any(
                word in text for word in _MEMORY_WORDS
            )
            error_class = DeviceOutOfMemory if is_memory else RetryableError
        raise error_class(f"{subject} failed: {line(error)}") from error


def first_line(error: BaseException) -> str:
    """Return the first non-blank line of an error's text; if there is none, the error's class."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line), type(error).__name__)


@contextmanager
def loading_errors(
    runtime: str, file: Path, package: str, line: Callable[[BaseException], str] = first_line
) -> Iterator[None]:
    """Convert a framework's exceptions about a file to ModelError, and silence its warnings.

    Args:
        runtime: the framework, with its version.
        file: the file that is loaded.
        package: the package to upgrade if the file is too new.
        line: as in `translate_errors`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as that TorchScript is deprecated
            yield
    except EdlError:
        raise
    except Exception as error:  # from KeyError to errors of C++ code
        raise ModelError(
            f"{runtime} cannot load {file}: {line(error)}; "
            f"if a newer version wrote it: pip install --upgrade {package}"
        ) from error


def is_network(thing: object, framework: str, class_name: str) -> bool:
    """Whether `thing` is a network of a framework. Does not import the framework.

    Args:
        thing: the object that a factory returned.
        framework: name of the framework's package.
        class_name: name of the class of its networks, in its module `nn`.
    """
    package = sys.modules.get(framework)
    return package is not None and isinstance(thing, getattr(package.nn, class_name))


#: Samples on which two precisions are compared.
_COMPARED_ROWS = 8


def describe_difference(backend: Backend, exact: Backend, precision: str) -> str:
    """Return a line that says how far the outputs of `backend` are from those of `exact`."""
    rows = backend.spec.rows_per_run(_COMPARED_ROWS)
    batch = probe_batch(backend.spec.inputs, rows, 0)
    lower, reference = backend.run(batch), exact.run(batch)
    differences = (_difference(name, lower, reference) for name in reference)
    return f"{precision} against fp32 on {rows} example samples: {'; '.join(differences)}"


def _difference(name: str, lower: Mapping[str, Array], reference: Mapping[str, Array]) -> str:
    exact = reference[name].astype(np.float64)
    difference = float(np.abs(lower[name].astype(np.float64) - exact).max())
    share = difference / max(float(np.abs(exact).max()), np.finfo(np.float64).tiny)
    text = f"{name} differs by at most {difference:.2g} ({share:.2%} of its largest value)"
    if exact.ndim < 2:
        return text
    same = int((lower[name].argmax(axis=-1) == exact.argmax(axis=-1)).sum())
    return f"{text}, and its largest entry is the same in {same} of {exact[..., 0].size}"


def gpu_of(device: str) -> int | None:
    """Return the number of the GPU that `device` names; None for the CPU.

    Raises:
        ModelError: it is neither "cpu" nor "gpu:N".
    """
    kind, _, number = device.partition(":")
    if kind == "cpu" and not number:
        return None
    if kind != "gpu" or not (number or "0").isdecimal():
        raise ModelError(f"unknown device {device!r}: expected cpu or gpu:N")
    return int(number or 0)


def check_gpu(device: str, index: int, count: int) -> None:
    """Raise ModelError if there is no GPU with this index."""
    if index >= count:
        raise ModelError(f"there is no {device}: this machine has {count} GPUs")


#: Prefixes of the flags in /proc/cpuinfo that decide which kernels oneDNN, MKL and OpenBLAS choose.
_KERNEL_FLAGS = ("sse4_1", "avx", "fma", "amx", "asimd", "sve", "f16c")


def instruction_set(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return architecture, vendor and relevant CPU flags, separated by commas."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:  # not Linux: only the architecture is known
        return platform.machine()
    fields: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    flags = fields.get("flags", fields.get("Features", "")).split()
    kernel_flags = sorted(flag for flag in flags if flag.startswith(_KERNEL_FLAGS))
    return ",".join([platform.machine(), fields.get("vendor_id", "unknown"), *kernel_flags])


def numerics(
    engine: str, precision: str, threads: int, gpu: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Return all that decides the bits of a model's labels, except the micro-batch.

    Args:
        engine: the framework, with its version.
        precision: of the arithmetic.
        threads: of a run on the CPU.
        gpu: the device and its libraries; None for the CPU.
    """
    on_cpu = ("cpu", f"threads={threads}", instruction_set())
    return (engine, precision, *(on_cpu if gpu is None else ("gpu", *gpu)))

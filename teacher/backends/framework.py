"""What every framework's backend needs: devices, precision, numerics, and errors in our words."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ...errors import DeviceOutOfMemory, EdlError, ModelError, RequestRefused, RetryableError
from ...proto.arena import Array
from . import Backend
from .tensor_specs import probe_batch

#: Words by which frameworks tell a memory or a device that failed, where the class does not.
_OF_MEMORY = ("out of memory", "allocate", "alloc_", "bad_alloc")
_OF_DEVICES = ("cuda", "cudnn", "cublas")


def lacks_resources(error: Exception) -> bool:
    """Whether `error` tells of the device or its memory rather than of the values given."""
    if isinstance(error, MemoryError | OSError | SystemError):
        return True
    said = str(error).lower()
    return any(word in said for word in (*_OF_MEMORY, *_OF_DEVICES))


def lacks_memory(error: Exception) -> bool:
    """Whether `error`, which tells of a resource, tells of memory."""
    said = str(error).lower()
    return isinstance(error, MemoryError) or any(word in said for word in _OF_MEMORY)


@contextmanager
def translated(
    doing: str,
    passing: Callable[[Exception], bool] = lacks_resources,
    line: Callable[[BaseException], str] = lambda error: first_line(error),
) -> Iterator[None]:
    """Turn what the block raises into one of our errors; ours go through as they are.

    Args:
        doing: what failed, in words.
        passing: whether the same values may do elsewhere, or later.
        line: one line of what an error says.

    Raises:
        DeviceOutOfMemory: the device has too little memory.
        RetryableError: the device failed.
        RequestRefused: anything else is about the values that were given.
    """
    try:
        yield
    except EdlError:
        raise
    except Exception as error:  # frameworks and the user's own code may raise anything
        kind: type[EdlError] = RequestRefused
        if passing(error):
            kind = DeviceOutOfMemory if lacks_memory(error) else RetryableError
        raise kind(f"{doing} failed: {line(error)}") from error


def first_line(error: BaseException) -> str:
    """The first line that says something."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line), type(error).__name__)


@contextmanager
def loading(
    runtime: str,
    file: Path,
    package: str,
    line: Callable[[BaseException], str] = first_line,
) -> Iterator[None]:
    """Turn what a framework raises at a file into a ModelError, and its warnings into nothing.

    Args:
        runtime: the framework, with its version.
        file: that is loaded.
        package: of which a newer version may read it.
        line: as of `translated`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that TorchScript is of yesterday, and the like
            yield
    except EdlError:
        raise
    except Exception as error:  # anything, from KeyError to errors of a C++ side
        raise ModelError(
            f"{runtime} cannot load {file}: {line(error)}; "
            f"if a newer one wrote it: pip install --upgrade {package}"
        ) from error


#: Samples that are compared.
_ROWS = 8


def compared(backend: Backend, exact: Backend, precision: str) -> str:
    """One line on how far the outputs of `backend` are from those of `exact`."""
    rows = backend.spec.rows_per_run(_ROWS)
    batch = probe_batch(backend.spec.inputs, rows, 0)
    lower, reference = backend.run(batch), exact.run(batch)
    each = (_difference(name, lower, reference) for name in reference)
    return f"{precision} against fp32 on {rows} example samples: {'; '.join(each)}"


def _difference(name: str, lower: Mapping[str, Array], reference: Mapping[str, Array]) -> str:
    exact = reference[name].astype(np.float64)
    apart = float(np.abs(lower[name].astype(np.float64) - exact).max())
    share = apart / max(float(np.abs(exact).max()), np.finfo(np.float64).tiny)
    said = f"{name} differs by at most {apart:.2g} ({share:.2%} of its largest value)"
    if exact.ndim < 2:
        return said
    same = int((lower[name].argmax(axis=-1) == exact.argmax(axis=-1)).sum())
    return f"{said}, largest entry the same in {same} of {exact[..., 0].size}"


def gpu_of(device: str) -> int | None:
    """The number of the GPU that `device` names, None for the CPU.

    Raises:
        ModelError: it is neither "cpu" nor "gpu:N".
    """
    kind, _, number = device.partition(":")
    if kind == "cpu" and not number:
        return None
    if kind != "gpu" or not (number or "0").isdigit():
        raise ModelError(f"unknown device {device!r}: expected cpu or gpu:N")
    return int(number or 0)


def check_gpu(device: str, index: int, count: int) -> None:
    """Raise ModelError where there are not so many GPUs."""
    if index >= count:
        raise ModelError(f"device {device} asked for, but there are {count} GPUs")


#: Flags of /proc/cpuinfo by which oneDNN, MKL and OpenBLAS pick their kernels.
_DECISIVE = ("sse4_1", "avx", "fma", "amx", "asimd", "sve", "f16c")


def instruction_set(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Architecture, vendor and the decisive CPU flags, in one word, the same on equal machines."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:  # not Linux: the architecture is all that is known
        return platform.machine()
    facts: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    flags = facts.get("flags", facts.get("Features", "")).split()
    decisive = sorted(flag for flag in flags if flag.startswith(_DECISIVE))
    return ",".join([platform.machine(), facts.get("vendor_id", "unknown"), *decisive])


def numerics(
    engine: str, precision: str, threads: int, gpu: Sequence[str] | None = None
) -> tuple[str, ...]:
    """What bits depend on, in words; the micro-batch is added by who chooses it.

    Args:
        engine: the framework, with its version.
        precision: of the arithmetic.
        threads: of a run on the CPU.
        gpu: the device and its libraries; None: the model runs on the CPU.
    """
    on_cpu = ("cpu", f"threads={threads}", instruction_set())
    return (engine, precision, *(on_cpu if gpu is None else ("gpu", *gpu)))

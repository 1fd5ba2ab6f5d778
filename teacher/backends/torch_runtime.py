"""PyTorch as its backend uses it: imported, set to exact arithmetic, errors and dtypes ours.

Arrays move between numpy and PyTorch through pinned memory, and without waiting, on CUDA.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import ml_dtypes
import numpy as np

from ...errors import ModelError
from ...extras import install_command
from ...proto.arena import Array
from . import framework
from .declared import datatype_named
from .framework import check_gpu, gpu_of

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def import_torch() -> Any:
    """The `torch` module; raises ModelError where it is not installed."""
    try:
        import torch
        import torch.export
    except ImportError as error:
        raise ModelError(
            f"torch cannot be imported ({error}): {install_command('torch')}"
        ) from None
    return torch


def open_device(torch: Any, device: str, threads: int) -> Any:
    """The `torch.device`, with arithmetic of full float32 and the same kernels each time.

    Raises:
        ModelError: there is no such device, or this torch cannot use it.
    """
    torch.set_num_threads(threads)
    if (index := gpu_of(device)) is None:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ModelError(
            f"device {device} asked for, but torch {torch.__version__} finds no CUDA: it was built "
            "without, or there is no driver; install a build for your CUDA"
        )
    check_gpu(device, index, torch.cuda.device_count())
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False  # True by itself: ten bits instead of twenty-three
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def numerics(torch: Any, device: Any, threads: int) -> tuple[str, ...]:
    """What bits depend on with PyTorch, in words; the micro-batch is added by who chooses it."""
    gpu = None
    if device.type != "cpu":
        name, cudnn = torch.cuda.get_device_name(device), torch.backends.cudnn.version()
        gpu = (name, f"cuda={torch.version.cuda}", f"cudnn={cudnn}")
    return framework.numerics(f"torch-{torch.__version__}", "fp32", threads, gpu)


def datatype(dtype: Any) -> str:
    """The protocol's name of a torch dtype; raises ModelError where it has none."""
    return datatype_named(str(dtype).removeprefix("torch."))


def dtype_for(torch: Any, dtype: np.dtype[Any]) -> Any:
    """The torch dtype of an array's dtype."""
    return getattr(torch, dtype.newbyteorder("=").name)


def as_array(torch: Any, tensor: Any) -> Array:
    """The tensor's memory as an array; a copy of it where the tensor is on a GPU."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # which torch does not hand to numpy
        whole: Array = tensor.contiguous().view(torch.int16).numpy()
        return whole.view(_BFLOAT16)
    array: Array = tensor.numpy()
    return array


class Timer:
    """Takes the time of what a device does between its creation and `stop`.

    On a GPU it counts from when the device comes to this work, by CUDA events: work that was queued
    before does not count.

    Args:
        torch: the module.
        on_gpu: whether the device is the current CUDA device, and not the CPU.
    """

    def __init__(self, torch: Any, *, on_gpu: bool) -> None:
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if on_gpu else []
        if self._events:
            self._events[0].record()
        self._began_s = time.perf_counter()
        self._took_s = 0.0

    def stop(self) -> None:
        """All of the work has been queued."""
        if self._events:
            self._events[1].record()
        else:
            self._took_s = time.perf_counter() - self._began_s

    def wait(self) -> float:
        """Wait until the work is done; returns the seconds that it took."""
        if self._events:
            began, ended = self._events
            ended.synchronize()
            self._took_s = began.elapsed_time(ended) / 1000
        return self._took_s


def lacks_resources(error: Exception) -> bool:
    """`RuntimeError` is what torch raises for everything: its words tell the cause."""
    if type(error).__name__ in ("OutOfMemoryError", "AcceleratorError"):
        return True
    return framework.lacks_resources(error)


class Copies:
    """The way in and out of one device.

    On CUDA both ways go through page-locked memory, which the device reads and writes by itself:
    the copies of all inputs, the run and the copies of all outputs are queued, and only their end
    is waited for. PyTorch's own allocator keeps that memory, and gives a block out again only when
    the copies from it have ended.

    Attributes:
        on_gpu: whether the device is a GPU.
    """

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self.on_gpu: bool = device.type == "cuda"

    def on_device(self) -> AbstractContextManager[Any]:
        """Makes the device that of the calling thread: each thread begins with the first GPU."""
        return self._torch.cuda.device(self._device) if self.on_gpu else nullcontext()

    def staged(self, array: Array) -> Any:
        """A copy in memory that the device can read; on a CPU, what the network is given."""
        dtype = dtype_for(self._torch, array.dtype)
        staged = self._torch.empty(array.shape, dtype=dtype, pin_memory=self.on_gpu)
        np.copyto(as_array(self._torch, staged), array)
        return staged

    def to_device(self, staged: Any) -> Any:
        """A tensor of its own: the network may write into it."""
        return staged.to(self._device, non_blocking=True) if self.on_gpu else staged

    def to_host(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """Tensors of their own, which are complete once the device has done what is queued."""
        return {name: self._fetched(tensor.detach()) for name, tensor in outputs.items()}

    def arrays(self, host: Mapping[str, Any]) -> dict[str, Array]:
        """What `to_host` returned, as arrays that stay as they are when the network runs again."""
        return {name: as_array(self._torch, tensor) for name, tensor in host.items()}

    def _fetched(self, tensor: Any) -> Any:
        staged = self._torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self.on_gpu)
        return staged.copy_(tensor, non_blocking=self.on_gpu)

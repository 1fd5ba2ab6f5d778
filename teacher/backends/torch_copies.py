"""Moves arrays between numpy and PyTorch: through pinned memory, and without waiting, on CUDA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...proto.arena import Array
from .torch_runtime import as_array, dtype_for


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

"""PyTorch's tensors as arrays, and arrays as tensors of PyTorch: without a copy where it allows."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...errors import BatchError
from ...proto.arena import Array, dtype_named


@dataclass(frozen=True, slots=True)
class TorchKind:
    """A tensor of PyTorch.

    Attributes:
        device: where it lies, as PyTorch says it; None: in the processor's memory.
        requires_grad: whether a gradient is wanted.
    """

    device: Any = None
    requires_grad: bool = False

    def tensor(self, array: Array) -> Any:
        """Raises BatchError where PyTorch has no such dtype."""
        try:
            tensor = _shared(array)
        except TypeError as error:
            raise BatchError(f"PyTorch has no such tensors: {error}") from None
        if self.device is not None and self.device.type != "cpu":
            tensor = tensor.to(self.device)
        return tensor.requires_grad_() if self.requires_grad else tensor

    def of_labels(self) -> TorchKind:
        return replace(self, requires_grad=False)


def array_of(node: Any) -> tuple[Array, TorchKind] | None:
    """The numbers of a tensor of PyTorch; None for anything else.

    Raises:
        BatchError: it is sparse, quantized, nested or without memory.
    """
    # Whoever holds a tensor has imported torch; nobody else shall pay for the import.
    torch: Any = sys.modules.get("torch")
    # While another thread is importing it, it has no Tensor yet.
    if torch is None or not isinstance(node, getattr(torch, "Tensor", ())):
        return None
    tensor: Any = node
    odd = tensor.is_quantized or tensor.is_nested or tensor.is_meta
    if odd or tensor.layout != torch.strided:
        raise BatchError(
            f"a torch tensor of layout {tensor.layout}, dtype {tensor.dtype}, device"
            f" {tensor.device} cannot travel; make it a dense one, as by to_dense() or dequantize()"
        )
    kind = TorchKind(tensor.device, tensor.requires_grad)
    # Plain: a subclass may have its own idea of each of the calls below.
    values = tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg().cpu()
    return _numbers(values), kind


def _numbers(tensor: Any) -> Array:
    import torch

    if tensor.dtype == torch.bfloat16:  # which numpy does not know: the same bits are read
        bits: Array = tensor.view(torch.int16).numpy()
        return bits.view(dtype_named("bfloat16"))
    try:
        array: Array = tensor.numpy()
    except TypeError:
        raise BatchError(
            f"a torch tensor of dtype {tensor.dtype} cannot travel; cast it to one that numpy has,"
            " or to bfloat16"
        ) from None
    return array


def _shared(array: Array) -> Any:
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)

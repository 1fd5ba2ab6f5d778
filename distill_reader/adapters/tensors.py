"""Conversion between numpy arrays and tensors of Paddle and PyTorch, without a copy if possible.

No framework is imported unless a batch contains one of its tensors.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np

from ...proto.arena import Array, dtype_named
from ...runtime.errors import BatchError


class TensorKind(Protocol):
    """The properties of a tensor that are restored: framework, device, gradient."""

    def tensor(self, array: Array) -> Any:
        """Convert an array to such a tensor; they share memory if the framework can do that."""
        ...

    def of_labels(self) -> TensorKind:
        """Return the kind of the soft labels of a batch with such a tensor."""
        ...


class NumpyKind:
    def tensor(self, array: Array) -> Array:
        return array

    def of_labels(self) -> NumpyKind:
        return self


PLAIN = NumpyKind()


def array_of(node: Any) -> tuple[Array, TensorKind] | None:
    """Return the array of a numpy array or tensor, and its kind; None for other leaves.

    Raises:
        BatchError: its values cannot be sent.
    """
    if isinstance(node, np.ndarray):
        return _checked(node), PLAIN
    if (kind := _paddle_kind_of(node)) is not None:
        return _paddle_numbers(node, kind), kind
    return _torch_array_of(node)


def _checked(array: Array) -> Array:
    if array.dtype.hasobject:
        raise BatchError(
            "an array of Python objects cannot be sent to teachers; use a fixed dtype, or a list of"
            " arrays or values"
        )
    if array.dtype.type is np.void or isinstance(array, np.ma.MaskedArray):
        raise BatchError(
            f"a {type(array).__name__} of dtype {array.dtype} cannot be sent to teachers; use one"
            " plain array for each of its fields, and one for a mask"
        )
    return array


#: Dtypes that Paddle can share with numpy.
_SHARED: Final = frozenset(
    {"bool", "uint8", "int8", "int16", "int32", "int64"}
    | {"float16", "float32", "float64", "complex64", "complex128"}
)


@dataclass(frozen=True, slots=True)
class PaddleKind:
    """A tensor of Paddle.

    Arrays of the dtypes in `_SHARED` become tensors on the CPU without a copy. Static programs get
    copies, because a thread of the executor frees their tensors. To free Python's memory, that
    thread needs the GIL while it holds one of Paddle's locks; the next `from_dlpack` holds the GIL
    and waits for that lock: a deadlock.

    Attributes:
        place: place of the tensor; None: Paddle's default place.
        stop_gradient: False if the tensor needs a gradient.
        static: the tensor is a `DenseTensor`, the type that loaders yield in static mode.
    """

    place: Any = None
    stop_gradient: bool = True
    static: bool = False

    def tensor(self, array: Array) -> Any:
        """Convert an array; raises BatchError if Paddle has no such dtype."""
        import paddle

        if array.dtype.name == "uint16":  # Paddle interprets it as the bits of bfloat16
            raise BatchError("Paddle has no tensors of uint16; cast the field, as to int32")
        place = self.place
        if place is None:
            place = paddle.base.framework._get_paddle_place(paddle.get_device())
        if array.dtype.name in _SHARED and place.is_cpu_place() and not self.static:
            tensor = paddle.utils.dlpack.from_dlpack(array.__dlpack__())
            tensor.stop_gradient = self.stop_gradient
            return tensor
        if array.dtype.name == "bfloat16":
            array = array.view(np.uint16)
        try:
            if self.static:
                dense = paddle.base.core.DenseTensor()
                dense.set(array, _specific_place(place))
                return dense
            return paddle.to_tensor(array, place=place, stop_gradient=self.stop_gradient)
        except ValueError as error:
            raise BatchError(f"Paddle has no tensors of {array.dtype}: {error}") from None

    def of_labels(self) -> PaddleKind:
        return replace(self, stop_gradient=True)


def moved(node: Any, place: Any) -> Any:
    """Return a tensor of Paddle copied to `place` unless it is there; other values unchanged."""
    kind = _paddle_kind_of(node)
    if kind is None or kind.place == place:
        return node
    return replace(kind, place=place).tensor(_paddle_numbers(node, kind))


def _specific_place(place: Any) -> Any:
    """Return the place as an instance of its specific class, which static tensors need."""
    from paddle.base import core

    if place.is_cpu_place():
        return core.CPUPlace()
    if place.is_cuda_pinned_place():
        return core.CUDAPinnedPlace()
    return core.CUDAPlace(place.gpu_device_id()) if place.is_gpu_place() else place


def _paddle_kind_of(node: Any) -> PaddleKind | None:
    # If paddle is not imported, `node` cannot be a tensor of Paddle.
    paddle = sys.modules.get("paddle")
    if paddle is None or not hasattr(paddle, "Tensor"):  # another thread is importing it
        return None
    if isinstance(node, paddle.Tensor):
        return PaddleKind(node.place, node.stop_gradient)
    if isinstance(node, paddle.base.core.DenseTensor):
        return PaddleKind(node._place(), static=True)
    return None


def _paddle_numbers(tensor: Any, kind: PaddleKind) -> Array:
    array: Array = np.array(tensor) if kind.static else tensor.numpy()
    # Paddle converts bfloat16 to uint16, as numpy has no bfloat16.
    return array.view(dtype_named("bfloat16")) if array.dtype == np.uint16 else array


@dataclass(frozen=True, slots=True)
class TorchKind:
    """A tensor of PyTorch.

    Attributes:
        device: device of the tensor; None: the CPU.
        requires_grad: whether the tensor needs a gradient.
    """

    device: Any = None
    requires_grad: bool = False

    def tensor(self, array: Array) -> Any:
        """Convert an array; raises BatchError if PyTorch has no such dtype."""
        import torch

        try:
            if array.dtype.name == "bfloat16":
                tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
            else:
                tensor = torch.from_numpy(array)
        except TypeError as error:
            raise BatchError(f"PyTorch has no tensors of {array.dtype}: {error}") from None
        if self.device is not None and self.device.type != "cpu":
            tensor = tensor.to(self.device)
        return tensor.requires_grad_() if self.requires_grad else tensor

    def of_labels(self) -> TorchKind:
        return replace(self, requires_grad=False)


def _torch_array_of(node: Any) -> tuple[Array, TorchKind] | None:
    """Return the array and kind of a tensor of PyTorch; None for other leaves.

    Raises:
        BatchError: it is sparse, quantized, nested or on the meta device, or of a dtype that numpy
            lacks.
    """
    # If torch is not imported, `node` cannot be a tensor of PyTorch.
    torch: Any = sys.modules.get("torch")
    # While another thread imports torch, torch has no Tensor yet.
    if torch is None or not isinstance(node, getattr(torch, "Tensor", ())):
        return None
    tensor: Any = node
    is_special = tensor.is_quantized or tensor.is_nested or tensor.is_meta
    if is_special or tensor.layout != torch.strided:
        raise BatchError(
            f"a torch tensor of layout {tensor.layout}, dtype {tensor.dtype}, device"
            f" {tensor.device} cannot be sent to teachers; convert it to a dense tensor, as by"
            " to_dense() or dequantize()"
        )
    kind = TorchKind(tensor.device, tensor.requires_grad)
    # A plain Tensor: a subclass may override any of these methods.
    values = tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg().cpu()
    if values.dtype == torch.bfloat16:  # unknown to numpy: reinterpret the bits
        return values.view(torch.int16).numpy().view(dtype_named("bfloat16")), kind
    try:
        return values.numpy(), kind
    except TypeError:
        raise BatchError(
            f"a torch tensor of dtype {values.dtype} cannot be sent to teachers; cast it to a dtype"
            " that numpy has, or to bfloat16"
        ) from None

"""Paddle's tensors as arrays, and arrays as tensors of Paddle.

Arrays become tensors without a copy on the processor, but for static programs: a thread of their
executor frees what it was fed, and takes memory that is Python's under a lock for which the next
`from_dlpack` waits, while it keeps Python's own from that thread. Then both wait for ever.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ...errors import BatchError
from ...proto.arena import Array, dtype_named

#: Dtypes that Paddle reads where they lie, with the meaning that numpy gives them.
_SHARED: Final = frozenset(
    {"bool", "uint8", "int8", "int16", "int32", "int64"}
    | {"float16", "float32", "float64", "complex64", "complex128"}
)


@dataclass(frozen=True, slots=True)
class PaddleKind:
    """A tensor of Paddle.

    Attributes:
        place: where it lies, as Paddle says it; None: where Paddle puts new tensors.
        stop_gradient: False where a gradient is wanted.
        static: it is what loaders yield in static mode.
    """

    place: Any = None
    stop_gradient: bool = True
    static: bool = False

    def tensor(self, array: Array) -> Any:
        """Raises BatchError where Paddle has no such dtype."""
        import paddle

        if array.dtype.name == "uint16":  # which Paddle would take for the bits of bfloat16
            raise BatchError("Paddle has no tensors of uint16; cast the field, as to int32")
        place = self.place
        if place is None:
            place = paddle.base.framework._get_paddle_place(paddle.get_device())
        if array.dtype.name in _SHARED and place.is_cpu_place() and not self.static:
            return self._shared(array)
        if array.dtype.name == "bfloat16":
            array = array.view(np.uint16)
        try:
            if self.static:
                dense = paddle.base.core.DenseTensor()
                dense.set(array, _exact(place))
                return dense
            return paddle.to_tensor(array, place=place, stop_gradient=self.stop_gradient)
        except ValueError as error:
            raise BatchError(f"Paddle has no tensors of {array.dtype}: {error}") from None

    def of_labels(self) -> PaddleKind:
        return replace(self, stop_gradient=True)

    def _shared(self, array: Array) -> Any:
        import paddle

        tensor = paddle.utils.dlpack.from_dlpack(array.__dlpack__())
        tensor.stop_gradient = self.stop_gradient
        return tensor


def array_of(node: Any) -> tuple[Array, PaddleKind] | None:
    """The numbers of a tensor of Paddle; None for anything else."""
    kind = _kind_of(node)
    return None if kind is None else (_numbers(node, kind), kind)


def moved(node: Any, place: Any) -> Any:
    """A tensor of Paddle on `place`, without a copy where it lies there; anything else as it is."""
    kind = _kind_of(node)
    if kind is None or kind.place == place:
        return node
    return replace(kind, place=place).tensor(_numbers(node, kind))


def _exact(place: Any) -> Any:
    """The place as the class of its own that static tensors want to be told."""
    from paddle.base import core

    if place.is_cpu_place():
        return core.CPUPlace()
    if place.is_cuda_pinned_place():
        return core.CUDAPinnedPlace()
    return core.CUDAPlace(place.gpu_device_id()) if place.is_gpu_place() else place


def _kind_of(node: Any) -> PaddleKind | None:
    # Whoever holds a Paddle tensor has imported paddle; nobody else shall pay for the import.
    paddle = sys.modules.get("paddle")
    if paddle is None or not hasattr(paddle, "Tensor"):  # another thread is importing it
        return None
    if isinstance(node, paddle.Tensor):
        return PaddleKind(node.place, node.stop_gradient)
    if isinstance(node, paddle.base.core.DenseTensor):
        return PaddleKind(node._place(), static=True)
    return None


def _numbers(tensor: Any, kind: PaddleKind) -> Array:
    array: Array = np.array(tensor) if kind.static else tensor.numpy()
    # Paddle shows bfloat16, which numpy does not know, as this.
    return array.view(dtype_named("bfloat16")) if array.dtype == np.uint16 else array

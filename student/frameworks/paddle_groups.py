"""Process groups of Paddle, and its tensors in collectives."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ...proto.arena import Array


class PaddleTensors:
    """The operations of `groups.TensorOps` on Paddle's tensors.

    Args:
        device: device of this rank.
    """

    def __init__(self, device: str) -> None:
        self._device = device

    def open_store(self, rank: int, endpoints: Sequence[str]) -> Any:
        from paddle.base import core

        _tell_paddle(rank, endpoints, self._device)
        return core.create_or_get_global_tcp_store()

    def form_group(self, store: Any, rank: int, world: int) -> None:
        import paddle.distributed as dist

        with contextlib.redirect_stderr(io.StringIO()):  # it prints the flags that it sets
            dist.init_parallel_env()

    def no_grad(self) -> AbstractContextManager[Any]:
        import paddle

        found: AbstractContextManager[Any] = paddle.no_grad()
        return found

    def gather(self, ours: Array, world: int) -> Array:
        import paddle
        import paddle.distributed as dist

        tensor = paddle.to_tensor(ours)
        theirs = paddle.empty([world * tensor.shape[0]], tensor.dtype)
        dist.stream.all_gather(theirs, tensor)
        return np.asarray(theirs.numpy()).reshape(world, len(ours))

    def broadcast(self, tensor: Any) -> None:
        import paddle.distributed as dist

        dist.broadcast(tensor, src=0)

    def begin_sum(self, tensor: Any) -> Callable[[], object]:
        import paddle.distributed as dist

        wait: Callable[[], object] = dist.all_reduce(tensor, sync_op=False).wait
        return wait

    def average(self, tensor: Any, world: int) -> None:
        total = tensor.astype("float32")
        self.begin_sum(total)()
        tensor.set_value((total / world).astype(tensor.dtype))

    def floats(self, rows: Sequence[tuple[float, float]]) -> Any:
        import paddle

        return paddle.to_tensor(list(rows), dtype="float32")

    def is_trained(self, parameter: Any) -> bool:
        return not parameter.stop_gradient

    def nbytes(self, parameter: Any) -> int:
        return int(parameter.size * parameter.element_size())

    def gradient_kind(self, parameter: Any) -> tuple[float, float]:
        gradient = parameter.grad
        if gradient is None:
            return 0.0, 0.0
        return 1.0, float(gradient.is_selected_rows())

    def join(self, parameters: Sequence[Any]) -> Any:
        import paddle

        return paddle.concat([_gradient(one).reshape([-1]) for one in parameters])

    def set_gradients(
        self, joined: Any, parameters: Sequence[Any], kinds: Sequence[tuple[bool, bool]]
    ) -> None:
        import paddle

        parts = paddle.split(joined, [one.size for one in parameters])
        for one, part, (present, sparse) in zip(parameters, parts, kinds, strict=True):
            if sparse:
                _set_sparse(one, part.reshape(one.shape))
            elif present:
                one.grad = part.reshape(one.shape)


def _tell_paddle(rank: int, endpoints: Sequence[str], device: str) -> None:
    """Set the variables from which alone Paddle reads what its world is."""
    kind, _, number = device.partition(":")
    os.environ.update(
        PADDLE_DISTRI_BACKEND="gloo" if kind == "cpu" else "nccl",
        PADDLE_TRAINER_ID=str(rank),
        PADDLE_TRAINERS_NUM=str(len(endpoints)),
        PADDLE_TRAINER_ENDPOINTS=",".join(endpoints),
        PADDLE_CURRENT_ENDPOINT=endpoints[rank],
        PADDLE_MASTER=endpoints[0],
        FLAGS_selected_gpus=number or "0",
    )
    for name in ("MASTER_ADDR", "MASTER_PORT"):  # from a launcher, for another world
        os.environ.pop(name, None)


def _gradient(parameter: Any) -> Any:
    import paddle

    gradient = parameter.grad
    if gradient is None:
        return paddle.zeros(parameter.shape, parameter.dtype)
    if gradient.is_selected_rows():
        gradient = _dense(parameter, gradient)
    return gradient.astype(parameter.dtype)


def _dense(parameter: Any, gradient: Any) -> Any:
    """Return a sparse gradient with all rows; those that it has several times are summed."""
    import paddle

    held = gradient.get_selected_rows()
    rows, values = list(held.rows()), paddle.to_tensor(held.get_tensor())
    zeros = paddle.zeros([parameter.shape[0], parameter.size // parameter.shape[0]], values.dtype)
    if not rows:
        return zeros.reshape(parameter.shape)
    places = paddle.to_tensor(rows, dtype="int64")
    values = values.reshape([len(rows), -1])
    return paddle.index_add(zeros, places, 0, values).reshape(parameter.shape)


def _set_sparse(parameter: Any, summed: Any) -> None:
    """Set the sparse gradient to a dense sum: Paddle does not let a dense one replace it."""
    import paddle
    import paddle.nn.functional as F

    if parameter.grad is None:  # a rank without rows; only a backward pass creates a sparse one
        F.embedding(paddle.zeros([1], "int64"), parameter, sparse=True).sum().backward()
    rows = paddle.nonzero((summed != 0).any(axis=1)).flatten()
    if rows.size == 0:
        rows = paddle.zeros([1], "int64")
    held = parameter.grad.get_selected_rows()
    held.get_tensor().set(summed[rows].numpy(), paddle.framework._current_expected_place())
    held.set_rows(rows.tolist())

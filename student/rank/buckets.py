"""Gradients in flat pieces of some megabytes, so that few collectives carry many of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: A bucket is closed when it has so many bytes: large enough to be fast, small enough to overlap.
BUCKET_BYTES = 25 << 20

#: Begins to sum a tensor over all ranks, in place; what it returns waits for the end.
BeginSum = Callable[[Any], Callable[[], None]]


class Buckets:
    """Sums gradients of parameters over ranks.

    Args:
        parameters: in the same order on all ranks.

    Attributes:
        parameters: the same.
    """

    def __init__(self, parameters: Sequence[Any]) -> None:
        self.parameters = parameters
        self._trained = [one for one in parameters if not one.stop_gradient]
        self._buckets = _packed(self._trained)

    def reduce(self, begin_sum: BeginSum) -> None:
        """Every gradient becomes its sum; one that no rank has stays None.

        A rank without rows has none, and takes part with zeros. Sparse gradients travel dense, and
        are sparse again afterwards: optimizers that leave other rows alone do so on all ranks.
        """
        import paddle

        with paddle.no_grad():
            flags = paddle.to_tensor([_kind(one) for one in self._trained], dtype="float32")
            waits = [begin_sum(flags)]
            flat = [_joined(bucket) for bucket in self._buckets]
            waits += [begin_sum(one) for one in flat]
            for wait in waits:
                wait()
            kinds = {
                id(one): (present > 0, sparse > 0)
                for one, (present, sparse) in zip(self._trained, flags.tolist(), strict=True)
            }
        for bucket, joined in zip(self._buckets, flat, strict=True):
            _part(joined, bucket, kinds)


def _packed(parameters: Sequence[Any]) -> list[list[Any]]:
    """Parameters of one dtype together, up to `BUCKET_BYTES`; the last ones, ready first, first."""
    buckets: list[list[Any]] = []
    open_ones: dict[str, tuple[list[Any], int]] = {}
    for one in reversed(parameters):
        kind = str(one.dtype)
        nbytes = one.size * one.element_size()
        bucket, held = open_ones.get(kind, ([], BUCKET_BYTES))
        if held + nbytes > BUCKET_BYTES:
            bucket, held = [], 0
            buckets.append(bucket)
        bucket.append(one)
        open_ones[kind] = (bucket, held + nbytes)
    return buckets


def _kind(parameter: Any) -> tuple[float, float]:
    """Whether it has a gradient, and whether that is sparse."""
    gradient = parameter.grad
    if gradient is None:
        return 0.0, 0.0
    return 1.0, float(gradient.is_selected_rows())


def _joined(bucket: Sequence[Any]) -> Any:
    import paddle

    return paddle.concat([_gradient(one).reshape([-1]) for one in bucket])


def _gradient(parameter: Any) -> Any:
    import paddle

    gradient = parameter.grad
    if gradient is None:
        return paddle.zeros(parameter.shape, parameter.dtype)
    if gradient.is_selected_rows():
        gradient = _dense(parameter, gradient)
    return gradient.astype(parameter.dtype)


def _dense(parameter: Any, gradient: Any) -> Any:
    """All rows of a sparse gradient, which may name one several times."""
    import paddle

    held = gradient.get_selected_rows()
    rows, values = list(held.rows()), paddle.to_tensor(held.get_tensor())
    zeros = paddle.zeros([parameter.shape[0], parameter.size // parameter.shape[0]], values.dtype)
    if not rows:
        return zeros.reshape(parameter.shape)
    places = paddle.to_tensor(rows, dtype="int64")
    values = values.reshape([len(rows), -1])
    return paddle.index_add(zeros, places, 0, values).reshape(parameter.shape)


def _part(joined: Any, bucket: Sequence[Any], kinds: Mapping[int, tuple[bool, bool]]) -> None:
    import paddle

    for one, part in zip(bucket, paddle.split(joined, [p.size for p in bucket]), strict=True):
        present, sparse = kinds[id(one)]
        if sparse:
            _set_sparse(one, part.reshape(one.shape))
        elif present:
            one.grad = part.reshape(one.shape)


def _set_sparse(parameter: Any, summed: Any) -> None:
    """Make a dense sum the sparse gradient: Paddle lets no dense one take its place."""
    import paddle
    import paddle.nn.functional as F

    if parameter.grad is None:  # of a rank without rows; and only a backward pass makes sparse ones
        F.embedding(paddle.zeros([1], "int64"), parameter, sparse=True).sum().backward()
    rows = paddle.nonzero((summed != 0).any(axis=1)).flatten()
    if rows.size == 0:
        rows = paddle.zeros([1], "int64")
    held = parameter.grad.get_selected_rows()
    held.get_tensor().set(summed[rows].numpy(), paddle.framework._current_expected_place())
    held.set_rows(rows.tolist())

"""Communication of the ranks of one world by `paddle.distributed`; none for a single rank.

It uses gloo on CPUs and NCCL on GPUs. gloo fails if a rank is 30 s later than the others, which
cannot be configured. So if ranks may be far apart in time, they first meet in the group's store,
which has no such limit. If a rank is gone, collectives raise an error, converted to `PeerLost`.
Gradients are packed into flat buckets of some megabytes, so that few collectives carry many.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ...runtime.errors import PeerLost, UsageError

#: Shortest and longest interval between reads of the store while ranks meet; it doubles.
_LOOK_FIRST_S, _LOOK_LAST_S = 0.001, 0.05


class Group(Protocol):
    """The ranks of one world.

    All must call the same methods in the same order, or none returns.

    Attributes:
        rank: number of this rank, from 0.
        world: number of ranks.
        patient: ranks may be far apart in time, so the next collective first waits for all of them
            without a limit, which takes a tenth of a second.
        waits_s: seconds for which this rank has waited for others without a break; 0: it does not
            wait.
    """

    rank: int
    world: int
    patient: bool

    @property
    def waits_s(self) -> float: ...

    def gather(self, numbers: Sequence[float]) -> list[tuple[float, ...]]:
        """Return the numbers of each rank, equally many, in the order of ranks."""

    def gather_json(self, value: Any) -> list[Any]:
        """Return a JSON value of each rank, in the order of ranks."""

    def sum_gradients(self, parameters: Sequence[Any]) -> None:
        """Replace each gradient by the sum over all ranks; one that no rank has stays None."""

    def share(self, tensors: Sequence[Any]) -> None:
        """Replace all values by those of rank 0."""

    def average(self, tensors: Sequence[Any]) -> None:
        """Replace all values by the means over all ranks."""


class SingleRankGroup:
    """A world of one rank, without communication."""

    rank, world, patient, waits_s = 0, 1, False, 0.0

    def gather(self, numbers: Sequence[float]) -> list[tuple[float, ...]]:
        return [tuple(numbers)]

    def gather_json(self, value: Any) -> list[Any]:
        return [value]

    def sum_gradients(self, parameters: Sequence[Any]) -> None:
        """Do nothing: its gradients are the sum."""

    def share(self, tensors: Sequence[Any]) -> None:
        """Do nothing: its values are those of rank 0."""

    def average(self, tensors: Sequence[Any]) -> None:
        """Do nothing: its values are the means."""


class DistributedGroup:
    """A world of several ranks, with Paddle's collectives; created by `join`."""

    def __init__(self, rank: int, world: int, store: Any) -> None:
        self.rank, self.world = rank, world
        self.patient = True
        self._waits_since_s: float | None = None
        self._store = store
        self._meetings = 0
        self._buckets: Buckets | None = None

    @property
    def waits_s(self) -> float:
        since_s = self._waits_since_s  # read once: other threads call this
        return 0.0 if since_s is None else time.monotonic() - since_s

    def gather(self, numbers: Sequence[float]) -> list[tuple[float, ...]]:
        import paddle

        ours = paddle.to_tensor(list(numbers), dtype="float64")
        theirs = self._gathered(ours).numpy().reshape(self.world, len(numbers))
        return [tuple(row) for row in theirs.tolist()]

    def gather_json(self, value: Any) -> list[Any]:
        import numpy as np
        import paddle

        data = json.dumps(value).encode()
        lengths = [int(length) for (length,) in self.gather([len(data)])]
        room = np.zeros(max(lengths), np.uint8)
        room[: len(data)] = np.frombuffer(data, np.uint8)
        theirs = self._gathered(paddle.to_tensor(room)).numpy().reshape(self.world, -1)
        texts = (row[:length].tobytes() for row, length in zip(theirs, lengths, strict=True))
        return [json.loads(text) for text in texts]

    def sum_gradients(self, parameters: Sequence[Any]) -> None:
        if self._buckets is None or self._buckets.parameters is not parameters:
            self._buckets = Buckets(parameters)
        with self._together("the gradients of the other ranks"):
            self._buckets.reduce(_begin_sum)

    def share(self, tensors: Sequence[Any]) -> None:
        import paddle.distributed as dist

        with self._together("the parameters of rank 0"):
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def average(self, tensors: Sequence[Any]) -> None:
        import paddle

        with self._together("the buffers of the other ranks"), paddle.no_grad():
            for tensor in tensors:
                total = tensor.astype("float32")
                _begin_sum(total)()
                tensor.set_value((total / self.world).astype(tensor.dtype))

    def _gathered(self, ours: Any) -> Any:
        import paddle
        import paddle.distributed as dist

        with self._together("the other ranks"):
            theirs = paddle.empty([self.world * ours.shape[0]], ours.dtype)
            dist.stream.all_gather(theirs, ours)
            return theirs

    @contextlib.contextmanager
    def _together(self, what: str) -> Iterator[None]:
        """Run collectives in the context; their errors mean that a peer is gone."""
        self._waits_since_s = time.monotonic()
        try:
            if self.patient:
                self.patient = False
                self._meet()
            yield
        except RuntimeError as error:  # the only type that Paddle raises
            raise PeerLost(
                f"rank {self.rank} of {self.world} waited for {what}, and one of them is gone:"
                f" {_last_line(error)}"
            ) from error
        finally:
            self._waits_since_s = None

    def _meet(self) -> None:
        """Wait for all ranks without a limit; if one dies, the supervisor ends this rank."""
        self._meetings += 1
        name = f"edl/met/{self._meetings}"
        pause_s = _LOOK_FIRST_S
        self._store.add(name, 1)
        while self._store.add(name, 0) < self.world:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LOOK_LAST_S)


def _begin_sum(tensor: Any) -> Callable[[], None]:
    """Start to sum a tensor over all ranks, in place; returns a function that waits for it."""
    import paddle.distributed as dist

    task = dist.all_reduce(tensor, sync_op=False)

    def wait() -> None:
        task.wait()

    return wait


def device_of(local_rank: int) -> str:
    """Return the device of a rank: a GPU of its own if Paddle sees any, else the CPU.

    Raises:
        UsageError: there are too few GPUs.
    """
    import paddle

    if not paddle.is_compiled_with_cuda() or paddle.device.cuda.device_count() == 0:
        return "cpu"
    if local_rank >= paddle.device.cuda.device_count():
        raise UsageError(
            f"local rank {local_rank} has no GPU: there are {paddle.device.cuda.device_count()};"
            " give --ranks-per-node no more than that"
        )
    return f"gpu:{local_rank}"


def join(rank: int, endpoints: Sequence[str], device: str) -> Group:
    """Join a world as `rank`, and wait for all others.

    Args:
        rank: number of this rank.
        endpoints: host:port of each rank.
        device: device of this rank.

    Raises:
        PeerLost: the group cannot be formed.
    """
    world = len(endpoints)
    if world <= 1:
        return SingleRankGroup()
    import paddle.distributed as dist
    from paddle.base import core

    _tell_paddle(rank, endpoints, device)
    try:
        store = core.create_or_get_global_tcp_store()
        peers = DistributedGroup(rank, world, store)
        peers._meet()  # forming the group has a limit of 30 s
        with contextlib.redirect_stderr(io.StringIO()):  # it prints the flags that it sets
            dist.init_parallel_env()
    except (RuntimeError, ValueError) as error:
        raise PeerLost(
            f"rank {rank} found no group with the ranks at {', '.join(endpoints)}:"
            f" {_last_line(error)}"
        ) from error
    return peers


def _last_line(error: BaseException) -> str:
    """Return the end of a message of Paddle, which begins with its own stack."""
    return str(error).strip().rpartition("\n")[2][:300]


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


#: Most bytes of a bucket: large enough to be fast, small enough to overlap.
BUCKET_BYTES = 25 << 20

#: Starts to sum a tensor over all ranks, in place; returns a function that waits for the end.
BeginSum = Callable[[Any], Callable[[], None]]


class Buckets:
    """Sums gradients of parameters over ranks, in few collectives.

    Args:
        parameters: parameters, in the same order on all ranks.

    Attributes:
        parameters: these parameters.
    """

    def __init__(self, parameters: Sequence[Any]) -> None:
        self.parameters = parameters
        self._trained = [one for one in parameters if not one.stop_gradient]
        self._buckets = _packed(self._trained)

    def reduce(self, begin_sum: BeginSum) -> None:
        """Replace each gradient by its sum; one that no rank has stays None.

        A rank without rows has no gradients, and takes part with zeros. Sparse gradients are sent
        dense and become sparse again, so that optimizers skip the same rows on all ranks.
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
    """Group parameters by dtype, up to `BUCKET_BYTES`, from the last one, which is ready first."""
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
    """Return whether it has a gradient, and whether that is sparse, as 0 or 1."""
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


def _part(joined: Any, bucket: Sequence[Any], kinds: Mapping[int, tuple[bool, bool]]) -> None:
    import paddle

    for one, part in zip(bucket, paddle.split(joined, [p.size for p in bucket]), strict=True):
        present, sparse = kinds[id(one)]
        if sparse:
            _set_sparse(one, part.reshape(one.shape))
        elif present:
            one.grad = part.reshape(one.shape)


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

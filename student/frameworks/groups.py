"""Communication of the ranks of one world by the framework's process group; none for a single rank.

It uses gloo on CPUs and NCCL on GPUs. Paddle's gloo fails if a rank is 30 s later than the others,
which cannot be configured. So if ranks may be far apart in time, they first meet in the group's
store, which has no such limit. If a rank is gone, collectives raise an error, converted to
`PeerLost`. Gradients are packed into flat buckets of some megabytes, so that few collectives carry
many.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

import numpy as np

from ...proto.arena import Array
from ...runtime.errors import PeerLost

#: Most bytes of a bucket: large enough to be fast, small enough to overlap.
BUCKET_BYTES = 25 << 20
#: Shortest and longest interval between reads of the store while ranks meet; it doubles.
_LOOK_FIRST_S, _LOOK_LAST_S = 0.001, 0.05


class SingleRankGroup:
    """A world of one rank, without communication; see `DistributedGroup`."""

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


class TensorOps(Protocol):
    """What ranks do with tensors of a framework, and with its process group."""

    def open_store(self, rank: int, endpoints: Sequence[str]) -> Any:
        """Return the store of the process group, which has a method `add`."""

    def form_group(self, store: Any, rank: int, world: int) -> None:
        """Form the process group; all ranks must call it within 30 s."""

    def no_grad(self) -> AbstractContextManager[Any]:
        """Return a context in which no gradients are recorded."""

    def gather(self, ours: Array, world: int) -> Array:
        """Return the arrays of all ranks, of equal shape [N], as [world, N]."""

    def broadcast(self, tensor: Any) -> None:
        """Replace a tensor by that of rank 0."""

    def begin_sum(self, tensor: Any) -> Callable[[], object]:
        """Start to sum a tensor over all ranks, in place; returns a function that waits for it."""

    def average(self, tensor: Any, world: int) -> None:
        """Replace a tensor by the mean over all ranks."""

    def floats(self, rows: Sequence[tuple[float, float]]) -> Any:
        """Return a float32 tensor [N, 2]."""

    def is_trained(self, parameter: Any) -> bool:
        """Whether the parameter may have a gradient."""

    def nbytes(self, parameter: Any) -> int: ...

    def gradient_kind(self, parameter: Any) -> tuple[float, float]:
        """Return whether it has a gradient, and whether that is sparse, as 0 or 1."""

    def join(self, parameters: Sequence[Any]) -> Any:
        """Return the gradients as one flat dense tensor; zeros for a parameter without one."""

    def set_gradients(
        self, joined: Any, parameters: Sequence[Any], kinds: Sequence[tuple[bool, bool]]
    ) -> None:
        """Set the gradients to their parts of `joined`.

        Args:
            joined: as in `join`.
            parameters: as in `join`.
            kinds: for each parameter, whether any rank has a gradient of it, and a sparse one.
        """


class DistributedGroup:
    """A world of several ranks.

    All must call the same methods in the same order, or none returns.

    Args:
        rank: number of this rank.
        world: number of ranks.
        store: the process group's store, with a method `add`.
        ops: the framework's operations; its process group may be made later.

    Attributes:
        rank: number of this rank, from 0.
        world: number of ranks.
        patient: ranks may be far apart in time, so the next collective first waits for all of them
            without a limit, which takes a tenth of a second.
    """

    def __init__(self, rank: int, world: int, store: Any, ops: TensorOps) -> None:
        self.rank, self.world = rank, world
        self.patient = True
        self._waits_since_s: float | None = None
        self._store = store
        self._ops = ops
        self._meetings = 0
        self._buckets: Buckets | None = None

    @property
    def waits_s(self) -> float:
        """Seconds for which this rank has waited for others without a break; 0: it does not."""
        since_s = self._waits_since_s  # read once: other threads call this
        return 0.0 if since_s is None else time.monotonic() - since_s

    def gather(self, numbers: Sequence[float]) -> list[tuple[float, ...]]:
        """Return the numbers of each rank, equally many, in the order of ranks."""
        theirs = self._gathered(np.array(list(numbers), np.float64))
        return [tuple(row) for row in theirs.tolist()]

    def gather_json(self, value: Any) -> list[Any]:
        """Return a JSON value of each rank, in the order of ranks."""
        data = json.dumps(value).encode()
        lengths = [int(length) for (length,) in self.gather([len(data)])]
        room = np.zeros(max(lengths), np.uint8)
        room[: len(data)] = np.frombuffer(data, np.uint8)
        rows = zip(self._gathered(room), lengths, strict=True)
        return [json.loads(row[:length].tobytes()) for row, length in rows]

    def sum_gradients(self, parameters: Sequence[Any]) -> None:
        """Replace each gradient by the sum over all ranks; one that no rank has stays None."""
        if self._buckets is None or self._buckets.parameters is not parameters:
            self._buckets = Buckets(parameters, self._ops)
        with self._together("the gradients of the other ranks"):
            self._buckets.reduce()

    def share(self, tensors: Sequence[Any]) -> None:
        """Replace all values by those of rank 0."""
        with self._together("the parameters of rank 0"), self._ops.no_grad():
            for tensor in tensors:
                self._ops.broadcast(tensor)

    def average(self, tensors: Sequence[Any]) -> None:
        """Replace all values by the means over all ranks."""
        with self._together("the buffers of the other ranks"), self._ops.no_grad():
            for tensor in tensors:
                self._ops.average(tensor, self.world)

    def meet(self) -> None:
        """Wait for all ranks without a limit; if one dies, the supervisor ends this rank."""
        self._meetings += 1
        name = f"edl/met/{self._meetings}"
        pause_s = _LOOK_FIRST_S
        self._store.add(name, 1)
        while self._store.add(name, 0) < self.world:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LOOK_LAST_S)

    def _gathered(self, ours: Array) -> Array:
        with self._together("the other ranks"):
            return self._ops.gather(ours, self.world)

    @contextlib.contextmanager
    def _together(self, what: str) -> Iterator[None]:
        """Run collectives in the context; their errors mean that a peer is gone."""
        self._waits_since_s = time.monotonic()
        try:
            if self.patient:
                self.patient = False
                self.meet()
            yield
        except RuntimeError as error:  # the base class of all that process groups raise
            raise PeerLost(
                f"rank {self.rank} of {self.world} waited for {what}, and one of them is gone:"
                f" {_last_line(error)}"
            ) from error
        finally:
            self._waits_since_s = None


def _last_line(error: BaseException) -> str:
    """Return the end of a message of a framework, which may begin with a stack of C++ frames."""
    return str(error).strip().rpartition("\n")[2][:300]


Group: TypeAlias = SingleRankGroup | DistributedGroup


def join(rank: int, endpoints: Sequence[str], ops: TensorOps) -> Group:
    """See `Framework.join`."""
    world = len(endpoints)
    if world <= 1:
        return SingleRankGroup()
    try:
        store = ops.open_store(rank, endpoints)
        group = DistributedGroup(rank, world, store, ops)
        group.meet()
        ops.form_group(store, rank, world)
    except (RuntimeError, ValueError) as error:
        raise PeerLost(
            f"rank {rank} found no group with the ranks at {', '.join(endpoints)}:"
            f" {_last_line(error)}"
        ) from error
    return group


class Buckets:
    """Sums gradients of parameters over ranks, in few collectives.

    Args:
        parameters: parameters, in the same order on all ranks.
        ops: the framework's operations.

    Attributes:
        parameters: these parameters.
    """

    def __init__(self, parameters: Sequence[Any], ops: TensorOps) -> None:
        self.parameters = parameters
        self._ops = ops
        self._trained = [one for one in parameters if ops.is_trained(one)]
        self._buckets = _packed(self._trained, ops)

    def reduce(self) -> None:
        """Replace each gradient by its sum; one that no rank has stays None.

        A rank without rows has no gradients, and takes part with zeros. Sparse gradients are sent
        dense and become sparse again, so that optimizers skip the same rows on all ranks.
        """
        ops = self._ops
        with ops.no_grad():
            flags = ops.floats([ops.gradient_kind(one) for one in self._trained])
            waits = [ops.begin_sum(flags)]
            flat = [ops.join(bucket) for bucket in self._buckets]
            waits += [ops.begin_sum(one) for one in flat]
            for wait in waits:
                wait()
            kinds: Mapping[int, tuple[bool, bool]] = {
                id(one): (present > 0, sparse > 0)
                for one, (present, sparse) in zip(self._trained, flags.tolist(), strict=True)
            }
        for bucket, joined in zip(self._buckets, flat, strict=True):
            ops.set_gradients(joined, bucket, [kinds[id(one)] for one in bucket])


def _packed(parameters: Sequence[Any], ops: TensorOps) -> list[list[Any]]:
    """Group parameters by dtype, up to `BUCKET_BYTES`, from the last one, which is ready first."""
    buckets: list[list[Any]] = []
    open_ones: dict[str, tuple[list[Any], int]] = {}
    for one in reversed(parameters):
        kind, nbytes = str(one.dtype), ops.nbytes(one)
        bucket, held = open_ones.get(kind, ([], BUCKET_BYTES))
        if held + nbytes > BUCKET_BYTES:
            bucket, held = [], 0
            buckets.append(bucket)
        bucket.append(one)
        open_ones[kind] = (bucket, held + nbytes)
    return buckets

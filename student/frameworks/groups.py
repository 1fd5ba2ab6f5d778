"""Collectives of the ranks of one world, by the framework's process group.

The process group uses gloo on CPUs and NCCL on GPUs. Paddle's gloo fails if a rank is 30 s later
than the others; this limit cannot be changed. So if ranks may be far apart in time, they first meet
in the group's store, which has no such limit. If a rank is gone, collectives raise an error, which
becomes `PeerLost`; errors of the work before and after collectives do not. Gradients are packed
into flat buckets of some megabytes, so few collectives are needed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from ...proto.arena import Array
from ...runtime.addresses import interface_of
from ...runtime.errors import PeerLost

#: Limit of the bytes of a bucket of several parameters. Large buckets need fewer collectives; with
#: small ones, the sums of several buckets overlap.
BUCKET_BYTES = 25 << 20
#: First and longest interval between reads of the store while ranks meet; it doubles.
_FIRST_POLL_S, _LONGEST_POLL_S = 0.001, 0.05


class SingleRankGroup:
    """A world of one rank, without communication; see `DistributedGroup`."""

    rank, world, patient, waits_s = 0, 1, False, 0.0

    def gather(self, numbers: Sequence[float]) -> list[tuple[float, ...]]:
        return [tuple(numbers)]

    def gather_json(self, value: Any) -> list[Any]:
        return [value]

    def sum_gradients(self, parameters: Sequence[Any]) -> None:
        """Do nothing: the gradients of the only rank are the sum."""

    def share(self, tensors: Sequence[Any]) -> None:
        """Do nothing: the only rank is rank 0."""

    def average(self, tensors: Sequence[Any]) -> None:
        """Do nothing: the values of the only rank are the means."""


class DistributedGroup(ABC):
    """A world of several ranks; each framework has a subclass with its operations on tensors.

    All ranks must call the same methods in the same order; otherwise calls hang or fail. The
    constructor waits for all ranks.

    Args:
        rank: number of this rank.
        endpoints: host:port of each rank.
        device: device of this rank, and of the tensors of collectives.

    Attributes:
        rank: number of this rank, from 0.
        world: number of ranks.
        patient: ranks may be far apart in time, so the next collective first waits for all of them
            without a time limit. This meeting adds up to a tenth of a second to the collective.

    Raises:
        PeerLost: the group cannot be formed.
    """

    #: The module of the framework; that of its process groups is `module.distributed`.
    module: ModuleType

    def __init__(self, rank: int, endpoints: Sequence[str], device: str) -> None:
        self.rank, self.world = rank, len(endpoints)
        self.patient = True
        self._device = device
        self._waits_since_s: float | None = None
        self._meetings = 0
        self._parameters: Sequence[Any] | None = None
        self._buckets: list[list[Any]] = []
        # Else gloo would take the address of the host's name, which may be loopback.
        if interface := interface_of(endpoints[rank].rpartition(":")[0]):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        try:
            self._store = self._open_store(endpoints)
            self._meet()
            self._form_group()
        except (RuntimeError, ValueError) as error:
            raise PeerLost(
                f"rank {rank} found no group with the ranks at {', '.join(endpoints)}:"
                f" {_last_line(error)}"
            ) from error

    @property
    def waits_s(self) -> float:
        """Seconds for which this rank has waited for others without a break; 0: no wait."""
        since_s = self._waits_since_s  # read once: other threads call this
        return 0.0 if since_s is None else time.monotonic() - since_s

    def gather(self, numbers: Sequence[float]) -> list[tuple[float, ...]]:
        """Return the numbers of each rank, in the order of ranks; all must pass equally many."""
        rows = self._gathered(np.array(list(numbers), np.float64))
        return [tuple(row) for row in rows.tolist()]

    def gather_json(self, value: Any) -> list[Any]:
        """Return the JSON value of each rank, in the order of ranks."""
        data = json.dumps(value).encode()
        lengths = [int(length) for (length,) in self.gather([len(data)])]
        padded = np.zeros(max(lengths), np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        rows = zip(self._gathered(padded), lengths, strict=True)
        return [json.loads(row[:length].tobytes()) for row, length in rows]

    def sum_gradients(self, parameters: Sequence[Any]) -> None:
        """Replace each gradient by the sum over all ranks; a gradient that no rank has stays None.

        A rank without rows has no gradients, and takes part with zeros. Sparse gradients are sent
        dense and become sparse again, so that optimizers skip the same rows on all ranks.

        Args:
            parameters: parameters, in the same order on all ranks.
        """
        if self._parameters is not parameters:
            self._parameters = parameters
            self._buckets = _buckets_of([each for each in parameters if self._is_trainable(each)])
        what = "the gradients of the other ranks"
        with self.module.no_grad():
            flags = self._floats([self._gradient_kind(each) for each in parameters])
            flat = [self._joined(bucket) for bucket in self._buckets]
            with self._together(what):
                self._sum(flags, *flat)
                rows = flags.tolist()
            kinds = dict(zip(map(id, parameters), rows, strict=True))
            known = {id(each) for bucket in self._buckets for each in bucket}
            unfrozen = [one for one in parameters if kinds[id(one)][0] and id(one) not in known]
            if unfrozen:  # the job has unfrozen them since its first step
                buckets = _buckets_of(unfrozen)
                late = [self._joined(bucket) for bucket in buckets]
                with self._together(what):
                    self._sum(*late)
                flat += late
                self._buckets += buckets
        for bucket, joined in zip(self._buckets, flat, strict=True):
            parts = self.module.split(joined, [math.prod(each.shape) for each in bucket])
            for parameter, part in zip(bucket, parts, strict=True):
                present, sparse = kinds[id(parameter)]
                if present > 0:
                    self._set_gradient(parameter, part.reshape(parameter.shape), sparse > 0)

    def share(self, tensors: Sequence[Any]) -> None:
        """Replace all values by those of rank 0."""
        with self.module.no_grad():
            for tensor in map(self._unexpanded, tensors):
                if not math.prod(tensor.shape):
                    continue
                # As bytes in their order: process groups lack dtypes, and ignore strides.
                data = tensor.contiguous().reshape([-1]).view(self.module.uint8)
                with self._together("the parameters of rank 0"):
                    self.module.distributed.broadcast(data, src=0)
                if self.rank:
                    self._set(tensor, data.view(tensor.dtype).reshape(tensor.shape))

    def average(self, tensors: Sequence[Any]) -> None:
        """Replace all values by the means over all ranks, computed in float64.

        So equal float32 values stay equal, and large ones, as in masks, do not overflow.
        """
        with self.module.no_grad():
            for tensor in map(self._unexpanded, tensors):
                total = tensor.clone().to(self.module.float64).contiguous()
                with self._together("the buffers of the other ranks"):
                    self._sum(total)
                self._set(tensor, total / self.world)

    def _meet(self) -> None:
        """Wait for all ranks without a limit; if one dies, the supervisor ends this rank."""
        self._meetings += 1
        name = f"edl/met/{self._meetings}"
        pause_s = _FIRST_POLL_S
        self._store.add(name, 1)
        while self._store.add(name, 0) < self.world:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_POLL_S)

    def _gathered(self, array: Array) -> Array:
        with self._together("the other ranks"):
            return self._gather(array)

    @contextlib.contextmanager
    def _together(self, what: str) -> Iterator[None]:
        """Run collectives in the context; convert their errors to PeerLost."""
        self._waits_since_s = time.monotonic()
        try:
            if self.patient:
                self.patient = False
                self._meet()
            yield
        except RuntimeError as error:  # the base class of all that process groups raise
            raise PeerLost(
                f"rank {self.rank} of {self.world} waited for {what}, and a rank is gone:"
                f" {_last_line(error)}"
            ) from error
        finally:
            self._waits_since_s = None

    def _sum(self, *tensors: Any) -> None:
        """Sum contiguous tensors over all ranks, in place."""
        for wait in [self._begin_sum(tensor) for tensor in tensors]:
            wait()

    def _gradient_kind(self, parameter: Any) -> tuple[float, float]:
        """Return whether the parameter has a gradient, and whether this is sparse, as 0 or 1."""
        gradient = parameter.grad
        return (0.0, 0.0) if gradient is None else (1.0, float(self._is_sparse(gradient)))

    def _joined(self, parameters: Sequence[Any]) -> Any:
        """Return the gradients as one flat dense tensor; zeros for a parameter without one."""
        dense = [
            self.module.zeros_like(each) if each.grad is None else self._dense(each)
            for each in parameters
        ]
        return self.module.concat([gradient.reshape([-1]) for gradient in dense])

    @abstractmethod
    def _open_store(self, endpoints: Sequence[str]) -> Any:
        """Return the store of the process group, which has a method `add`."""

    @abstractmethod
    def _form_group(self) -> None:
        """Form the process group; all ranks must call it within 30 s (Paddle's limit)."""

    @abstractmethod
    def _gather(self, array: Array) -> Array:
        """Return the arrays of all ranks, of equal shape [N], as [world, N]."""

    @abstractmethod
    def _begin_sum(self, tensor: Any) -> Callable[[], object]:
        """Start to sum a tensor over all ranks, in place; return a function that waits for it."""

    def _unexpanded(self, tensor: Any) -> Any:
        """Return a view of the tensor that has each element of its memory once."""
        return tensor

    @abstractmethod
    def _set(self, tensor: Any, values: Any) -> None:
        """Replace the values of a tensor by those of another one, whose float dtype may differ."""

    @abstractmethod
    def _floats(self, rows: Sequence[tuple[float, float]]) -> Any:
        """Return a float32 tensor [N, 2]."""

    @abstractmethod
    def _is_trainable(self, parameter: Any) -> bool:
        """Whether the parameter may have a gradient."""

    @abstractmethod
    def _is_sparse(self, gradient: Any) -> bool: ...

    @abstractmethod
    def _dense(self, parameter: Any) -> Any:
        """Return the gradient as a dense tensor of the parameter's dtype."""

    @abstractmethod
    def _set_gradient(self, parameter: Any, summed: Any, sparse: bool) -> None:
        """Set the gradient to a dense tensor; `sparse`: convert it, as a rank has a sparse one."""


Group: TypeAlias = SingleRankGroup | DistributedGroup


def _last_line(error: BaseException) -> str:
    """Return the end of a message of a framework, which may begin with a stack of C++ frames."""
    return str(error).strip().rpartition("\n")[2][:300]


def _buckets_of(parameters: Sequence[Any]) -> list[list[Any]]:
    """Group parameters by dtype into buckets of up to `BUCKET_BYTES`.

    The last parameter comes first, as the backward pass computes its gradient first.
    """
    buckets: list[list[Any]] = []
    open_buckets: dict[str, tuple[list[Any], int]] = {}
    for parameter in reversed(parameters):
        dtype = str(parameter.dtype)
        nbytes = math.prod(parameter.shape) * int(parameter.element_size())
        bucket, filled_bytes = open_buckets.get(dtype, ([], BUCKET_BYTES))
        if filled_bytes + nbytes > BUCKET_BYTES:
            bucket, filled_bytes = [], 0
            buckets.append(bucket)
        bucket.append(parameter)
        open_buckets[dtype] = (bucket, filled_bytes + nbytes)
    return buckets

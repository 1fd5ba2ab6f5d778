"""Stateful and plain sources: iterables of batches without sample ids.

An iterable with a state, such as a `StatefulDataLoader`, resumes from its state, which is saved as
JSON values without loss. Any other iterable resumes by reading the epoch again and comparing
digests. The digest of a batch includes the previous digest, as in a hash chain. Up to `MAX_DIGESTS`
earlier digests, evenly spread, are kept to find where a replay first differs.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Self

import numpy as np

from ...proto.arena import Array, dtype_named
from ...runtime.errors import BatchError, UsageError
from ..adapters.tensors import TorchKind, array_of
from ..structure import take_apart
from .map_style import with_inner
from .source import Mark, close_iterator, own_iterator, reading_mark, set_epoch_of


class _IterableSource:
    """An iterable of batches that the reader cannot divide among ranks."""

    divides_ids = False

    def __init__(self, iterable: Any) -> None:
        self._iterable = iterable

    def __len__(self) -> int:
        return len(self._iterable)  # raises TypeError if the iterable has no length

    def identity(self) -> dict[str, Any]:
        return {"type": type(self._iterable).__qualname__}

    def _set_epoch(self, epoch: int) -> None:
        """Set the epoch of the iterable, and if it is a loader, of its samplers and data set."""
        names = ("batch_sampler", "sampler", "dataset")
        batch_sampler, sampler, dataset = (getattr(self._iterable, name, None) for name in names)
        samplers = with_inner(sampler if batch_sampler is None else batch_sampler)
        set_epoch_of(epoch, self._iterable, *samplers, dataset)

    def close(self) -> None:
        pass


class StatefulSource(_IterableSource):
    """An iterable with `state_dict` and `load_state_dict`.

    A mark is its state after a batch, read before the next batch is requested. After
    `load_state_dict`, the next `iter` must continue there.
    """

    kind = "stateful"

    def __init__(self, iterable: Any) -> None:
        super().__init__(iterable)
        self._starts: dict[int, Mark] = {}  # marks of epochs that began by default

    def begin(self, epoch: int, taken: int, mark: Mark | None) -> _StatefulIterator:
        self._set_epoch(epoch)
        by_default = mark is None
        if mark is None:
            mark = self._starts.get(epoch)  # the loop goes back to its first epoch
        if mark is not None:
            with reading_mark():
                state = decoded(mark["state"])
            self._iterable.load_state_dict(state)
        reading = _StatefulIterator(self._iterable)
        if by_default:
            self._starts.setdefault(epoch, reading.start)
        return reading


class _StatefulIterator:
    def __init__(self, iterable: Any) -> None:
        self._iterable = iterable
        self._batches: Iterator[Any] = own_iterator(iterable)
        self.start = self._state()

    def __next__(self) -> Any:
        return next(self._batches)

    def mark(self, arrays: Sequence[Array]) -> Mark:
        return self._state()

    def end(self) -> Mark:
        return self._state()

    def close(self) -> None:
        close_iterator(self._batches)

    def _state(self) -> Mark:
        return {"state": encoded(self._iterable.state_dict())}


class PlainSource(_IterableSource):
    """An iterable that yields the same batches each time the same epoch begins.

    A mark is the `DigestChain` of the epoch so far. To resume, the delivered batches are read again
    and compared with that chain.
    """

    kind = "plain"

    def begin(self, epoch: int, taken: int, mark: Mark | None) -> _PlainIterator:
        self._set_epoch(epoch)
        with reading_mark():
            saved_chain = DigestChain() if mark is None else DigestChain.from_json(mark)
        return _PlainIterator(own_iterator(self._iterable), epoch, saved_chain)


class _PlainIterator:
    def __init__(self, batches: Iterator[Any], epoch: int, saved_chain: DigestChain) -> None:
        self.start = saved_chain.to_json() if saved_chain.length else None
        self._batches = batches
        self._epoch = epoch
        self._saved_chain = saved_chain
        self._chain = DigestChain()

    def __next__(self) -> Any:
        while self._chain.length < self._saved_chain.length:
            self._replay()
        return next(self._batches)

    def mark(self, arrays: Sequence[Array]) -> Mark:
        self._chain = self._chain.extended(arrays)
        return self._chain.to_json()

    def end(self) -> None:
        return None

    def close(self) -> None:
        close_iterator(self._batches)

    def _replay(self) -> None:
        saved_chain, length = self._saved_chain, self._chain.length
        try:
            batch = next(self._batches)
        except StopIteration:
            raise UsageError(
                f"epoch {self._epoch} of the source has only {length} batches now, and"
                f" {saved_chain.length} were delivered before; {_WHAT_HELPS}"
            ) from None
        self._chain = self._chain.extended(take_apart(batch).arrays)
        if self._chain.length == saved_chain.length and (
            found := saved_chain.divergence(self._chain)
        ):
            equal, different = found
            raise UsageError(
                f"epoch {self._epoch} of the source is not the one that was read before: its first"
                f" {equal} batches are the same, its first {different} are not; {_WHAT_HELPS}"
            )


_WHAT_HELPS = (
    "a source can only be resumed if it yields the same batches again: seed its order in"
    " set_epoch(epoch), which the reader calls, or use a map-style loader"
)


#: Maximum number of `DigestChain.digests`.
MAX_DIGESTS = 64
#: A digest covers 64 evenly spread windows of 64 bytes of a large array, and its last 64 bytes: a
#: digest of all bytes would cost as much as sending the array.
_WINDOWS, _WINDOW_BYTES = 64, 64


class DigestChain(NamedTuple):
    """Digests of the batches of an epoch so far.

    Attributes:
        length: number of batches.
        digest: digest of all these batches.
        digests: (length, digest) after every `spacing`-th batch.
        spacing: a power of two that doubles when there are more than `MAX_DIGESTS` digests.
    """

    length: int = 0
    digest: str = ""
    digests: tuple[tuple[int, str], ...] = ()
    spacing: int = 1

    def extended(self, arrays: Sequence[Array]) -> Self:
        """Return the chain after one more batch of these arrays."""
        length = self.length + 1
        digest = _next_digest(self.digest, arrays)
        digests, spacing = self.digests, self.spacing
        if length % spacing == 0:
            digests = (*digests, (length, digest))
        if len(digests) > MAX_DIGESTS:
            spacing *= 2
            digests = tuple(entry for entry in digests if entry[0] % spacing == 0)
        return type(self)(length, digest, digests, spacing)

    def to_json(self) -> dict[str, Any]:
        return {
            "length": self.length,
            "digest": self.digest,
            "marks": list(map(list, self.digests)),  # their name in saved states
            "spacing": self.spacing,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        digests = tuple((int(length), str(digest)) for length, digest in value["marks"])
        return cls(int(value["length"]), str(value["digest"]), digests, int(value["spacing"]))

    def divergence(self, other: DigestChain) -> tuple[int, int] | None:
        """Find where `other` first differs.

        Returns:
            The last common length with equal digests and the first with different ones; None if the
            digests of all common lengths are equal.
        """
        mine = {**dict(self.digests), self.length: self.digest}
        theirs = {**dict(other.digests), other.length: other.digest}
        agreed = 0
        for length in sorted(mine.keys() & theirs.keys()):
            if mine[length] != theirs[length]:
                return agreed, length
            agreed = length
        return None


def _next_digest(before: str, arrays: Sequence[Array]) -> str:
    from hashlib import blake2b  # loads OpenSSL

    parts = [before.encode()]
    for array in arrays:
        parts += (f"{array.dtype.str}{array.shape}".encode(), _excerpt(array))
    return blake2b(b"".join(parts), digest_size=8).hexdigest()


def _excerpt(array: Array) -> bytes:
    """Return the bytes of a small array; of a large one, those of evenly spread windows."""
    if array.nbytes <= _WINDOWS * _WINDOW_BYTES:
        return array.tobytes()
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    stride = array.nbytes // _WINDOWS  # at least _WINDOW_BYTES, as the array is large
    windows = content[: stride * _WINDOWS].reshape(_WINDOWS, stride)[:, :_WINDOW_BYTES]
    return windows.tobytes() + content[-_WINDOW_BYTES:].tobytes()


_KIND = "$kind"  # the key that marks values without a JSON type


def encoded(value: Any, where: str = "") -> Any:
    """Convert a state to JSON values, from which `decoded` restores an equal state.

    Args:
        value: JSON values, bytes, tuples, dicts, numpy arrays and numbers, and tensors of PyTorch,
            which are restored on the CPU.
        where: path of `value` in the state, for errors.

    Raises:
        UsageError: a value of another type.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and key != _KIND for key in value):
            return {key: encoded(item, f"{where}.{key}") for key, item in value.items()}
        pairs = [[encoded(k, where), encoded(v, f"{where}.{k}")] for k, v in value.items()]
        return {_KIND: "dict", "pairs": pairs}
    if isinstance(value, (list, tuple)):
        values = [encoded(item, f"{where}[{index}]") for index, item in enumerate(value)]
        return values if isinstance(value, list) else {_KIND: "tuple", "values": values}
    if isinstance(value, (bytes, bytearray)):
        mutable = {"mutable": True} if isinstance(value, bytearray) else {}
        return {_KIND: "bytes", "data": _base64(value), **mutable}
    kind, array = _array_in(value)
    if array is not None and (dtype := _dtype_to_json(array.dtype)) is not None:
        data = _base64(array.tobytes())
        return {_KIND: kind, "dtype": dtype, "shape": [*array.shape], "data": data}
    raise UsageError(
        f"the source's state_dict() holds a {type(value).__name__} at state{where}, which cannot be"
        " written as JSON; have it return numbers, texts, lists, dicts, bytes and arrays"
    )


def decoded(value: Any) -> Any:
    """Restore a value that `encoded` has converted."""
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value.get(_KIND):
        case None:
            return {key: decoded(item) for key, item in value.items()}
        case "dict":
            return {decoded(key): decoded(item) for key, item in value["pairs"]}
        case "tuple":
            return tuple(decoded(item) for item in value["values"])
        case "bytes":
            data = base64.b64decode(value["data"])
            return bytearray(data) if value.get("mutable") else data
        case "number":
            return _array_of_json(value)[()]
        case "tensor":
            return TorchKind().tensor(_array_of_json(value))
        case _:
            return _array_of_json(value)


def _array_in(value: Any) -> tuple[str, Array | None]:
    """Return the kind of an array, number or tensor, and its elements; None for other values."""
    if isinstance(value, np.ndarray):
        return "array", None if isinstance(value, np.ma.MaskedArray) else value
    if isinstance(value, np.generic):
        return "number", np.asarray(value)
    with suppress(BatchError):
        if (found := array_of(value)) is not None and isinstance(found[1], TorchKind):
            return "tensor", found[0]
    return "", None


def _dtype_to_json(dtype: np.dtype[Any]) -> str | list[Any] | None:
    """Return the dtype as a JSON value for `_dtype_of_json`; None: it cannot be restored."""
    description: str | list[Any] = dtype.descr if dtype.names else dtype.str
    for candidate in () if dtype.hasobject else (description, dtype.name):
        with suppress(TypeError, ValueError, AttributeError):
            if _dtype_of_json(candidate) == dtype:
                return candidate
    return None


def _dtype_of_json(value: str | list[Any]) -> np.dtype[Any]:
    if isinstance(value, str):
        return dtype_named(value)
    return np.dtype(
        [(name, _dtype_of_json(field), *map(tuple, shape)) for name, field, *shape in value]
    )


def _array_of_json(value: dict[str, Any]) -> np.ndarray[Any, Any]:
    data = bytearray(base64.b64decode(value["data"]))  # so that the array is writable
    return np.frombuffer(data, _dtype_of_json(value["dtype"])).reshape(value["shape"])


def _base64(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode()

"""What is remembered of the batches of an epoch, so that reading it again can be held against it.

The digest of the last batch holds those of all before it. Besides, the digests at up to `MARKS`
earlier places are kept, evenly spread: they tell where a replay first went another way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Self

import numpy as np

from ...proto.arena import Array

MARKS = 64
#: Of an array no more than this is read: a digest must not cost what sending costs.
_WINDOWS, _WINDOW_BYTES = 64, 64


class Trail(NamedTuple):
    """The batches of an epoch so far; made anew with each.

    Attributes:
        length: how many they are.
        digest: of all of them.
        marks: pairs of a length and its digest, of every `spacing`-th one.
        spacing: a power of two; it doubles when there are too many marks.
    """

    length: int = 0
    digest: str = ""
    marks: tuple[tuple[int, str], ...] = ()
    spacing: int = 1

    def followed(self, arrays: Sequence[Array]) -> Self:
        """The trail with one more batch."""
        length = self.length + 1
        digest = _chained(self.digest, arrays)
        marks, spacing = self.marks, self.spacing
        if length % spacing == 0:
            marks = (*marks, (length, digest))
        if len(marks) > MARKS:
            spacing *= 2
            marks = tuple(mark for mark in marks if mark[0] % spacing == 0)
        return type(self)(length, digest, marks, spacing)

    def to_json(self) -> dict[str, Any]:
        return {
            "length": self.length,
            "digest": self.digest,
            "marks": [[length, digest] for length, digest in self.marks],
            "spacing": self.spacing,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        marks = tuple((int(length), str(digest)) for length, digest in value["marks"])
        return cls(int(value["length"]), str(value["digest"]), marks, int(value["spacing"]))

    def leaves(self, other: Trail) -> tuple[int, int] | None:
        """Between which lengths `other`, of the same batches at first, goes another way.

        Returns:
            The last length at which both are known to agree and the first at which they differ;
            None where they agree at each that both know.
        """
        mine = {**dict(self.marks), self.length: self.digest}
        theirs = {**dict(other.marks), other.length: other.digest}
        agreed = 0
        for length in sorted(mine.keys() & theirs.keys()):
            if mine[length] != theirs[length]:
                return agreed, length
            agreed = length
        return None


def _chained(before: str, arrays: Sequence[Array]) -> str:
    parts = [before.encode()]
    for array in arrays:
        parts += (f"{array.dtype.str}{array.shape}".encode(), _excerpt(array))
    return str(_blake2b()(b"".join(parts), digest_size=8).hexdigest())


@cache
def _blake2b() -> Any:
    from hashlib import blake2b  # loads OpenSSL

    return blake2b


def _excerpt(array: Array) -> bytes:
    """All of a small array; of a large one windows, evenly spread over all of it."""
    if array.nbytes <= _WINDOWS * _WINDOW_BYTES:
        return array.tobytes()
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    stride = array.nbytes // _WINDOWS  # above _WINDOW_BYTES: the array is large
    windows = content[: stride * _WINDOWS].reshape(_WINDOWS, stride)[:, :_WINDOW_BYTES]
    return windows.tobytes() + content[-_WINDOW_BYTES:].tobytes()

"""Which sample is it? 16 bytes that say so: of what a teacher gets to see of it, and of its model.

xxh3 of 128 bits is no cryptographic hash: it tells apart samples that happen to differ (among a
billion, two agree with a probability of 2e-21), not such as somebody has made to be taken for each
other. Whoever can do that writes the training data anyway. `edl bench store` says what it costs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np

from ...proto.datatypes import Array, datatype_of, dtype_of
from .rows import Content

#: A part of every key: another way to make them is another version.
_VERSION = 1


def keys_of(
    content: Content,
    arrays: Mapping[str, Array],
    start: int,
    stop: int,
    ids: Sequence[Array] = (),
) -> list[bytes]:
    """The keys of the samples [start, stop) of a batch.

    Args:
        content: whose labels these are.
        arrays: what the teacher gets, by the model's inputs, [n, ...]. Names, dtypes and shapes of
            rows count whatever `ids` are: what a model says may depend on how far a row is padded.
        start: first sample.
        stop: behind the last one.
        ids: arrays [n, ...] that say which sample it is, in place of the bytes of `arrays`.

    Returns:
        16 bytes for each.

    Raises:
        WireError: an array of a dtype that no teacher can be sent.
    """
    import xxhash

    named = sorted(arrays.items())
    head = [
        _VERSION,
        content,
        [[name, *_kind(array)] for name, array in named],
        [_kind(array) for array in ids],
        bool(ids),
    ]
    begun = xxhash.xxh3_128(json.dumps(head).encode())
    counted = [_rows(array, start, stop) for array in (ids or [array for _, array in named])]
    keys = []
    for row in range(stop - start):
        hasher = begun.copy()
        for rows in counted:
            hasher.update(rows[row])
        keys.append(hasher.digest())
    return keys


def _kind(array: Array) -> list[object]:
    """What all its rows have in common: datatype and shape; of texts, the bytes of one, too."""
    kind: list[object] = [datatype_of(array.dtype), array.shape[1:]]
    return [*kind, array.dtype.itemsize] if array.dtype.kind == "S" else kind


def _rows(array: Array, start: int, stop: int) -> Array:
    """The bytes of these rows, uint8 [n, bytes of a row]; no copy where they lie together."""
    width = array.dtype.itemsize * math.prod(array.shape[1:])
    dtype = array.dtype if array.dtype.kind == "S" else dtype_of(datatype_of(array.dtype))
    raw = np.ascontiguousarray(array[start:stop], dtype).reshape(-1).view(np.uint8)
    return raw.reshape(stop - start, width)

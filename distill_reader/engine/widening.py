"""One dtype for labels of several, as `scheduler.precision` says which."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ...proto.arena import Array, dtype_named
from ...scheduler.precision import widest


@lru_cache(maxsize=64)
def joined(one: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any] | None:
    """The dtype of rows of both in one array; None where they cannot stand in one."""
    if one == other:
        return one
    name = widest(one.name, other.name)
    return None if name is None else dtype_named(name)


def concatenated(pieces: Sequence[Array]) -> Array:
    """Rows of pieces whose dtypes can be joined, one below the other."""
    dtype = pieces[0].dtype
    for piece in pieces[1:]:
        wider = joined(dtype, piece.dtype)
        assert wider is not None
        dtype = wider
    return np.concatenate([piece.astype(dtype, copy=False) for piece in pieces])

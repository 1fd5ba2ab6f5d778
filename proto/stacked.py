"""An input that lies in several pieces, which only the message that it travels in joins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import WireError
from .datatypes import Array


@dataclass(frozen=True, slots=True, eq=False)
class Stacked:
    """Arrays that stand for one: stacked along axis 0, in their order.

    Attributes:
        pieces: one or more, equal in dtype and in their shapes but for axis 0.

    Raises:
        WireError: they are not.
    """

    pieces: tuple[Array, ...]

    def __post_init__(self) -> None:
        kinds = {(piece.dtype, piece.shape[1:]) for piece in self.pieces}
        if len(kinds) != 1 or any(not piece.ndim for piece in self.pieces):
            shown = ", ".join(f"{piece.dtype} {list(piece.shape)}" for piece in self.pieces)
            raise WireError(f"arrays like these cannot be stacked: {shown or 'none'}")

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of every piece."""
        return self.pieces[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole."""
        rows = sum(piece.shape[0] for piece in self.pieces)
        return (rows, *self.pieces[0].shape[1:])

    @property
    def ndim(self) -> int:
        """Dimensions of the whole."""
        return self.pieces[0].ndim

    @property
    def nbytes(self) -> int:
        """Bytes of the whole."""
        return sum(piece.nbytes for piece in self.pieces)


#: What a model gets for one of its inputs.
Input = Array | Stacked


def pieces_of(value: Input) -> tuple[Array, ...]:
    """The arrays that `value` lies in."""
    return value.pieces if isinstance(value, Stacked) else (value,)


def whole(value: Input) -> Array:
    """One array; a copy where there are several pieces."""
    pieces = pieces_of(value)
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def all_whole(inputs: Mapping[str, Input]) -> dict[str, Array]:
    """Each input as one array, for a protocol whose messages cannot be joined from pieces."""
    return {name: whole(value) for name, value in inputs.items()}

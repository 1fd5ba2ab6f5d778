"""Which float type holds labels of several: teachers of one content may be of unlike precision.

The richest form wins: the narrowest type that holds every value of both exactly. So no label loses
a bit by standing beside others, and who is compared with whom is compared at full precision. Other
types than floats are never joined: a class id is not a probability.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Bits of the fraction and of the exponent, the narrowest type first.
_BITS: Final[Mapping[str, tuple[int, int]]] = {
    "float16": (10, 5),
    "bfloat16": (7, 8),
    "float32": (23, 8),
    "float64": (52, 11),
}


def widest(one: str, other: str) -> str | None:
    """The type for values of both, by their names; None where they cannot stand together."""
    if one == other:
        return one
    if one not in _BITS or other not in _BITS:
        return None
    fraction, exponent = map(max, _BITS[one], _BITS[other])
    return next(
        (name for name, (f, e) in _BITS.items() if f >= fraction and e >= exponent), "float64"
    )

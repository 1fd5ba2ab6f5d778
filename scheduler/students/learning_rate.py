"""What becomes of the learning rate when the number of ranks changes: once for each change."""

from __future__ import annotations

import math
from typing import Literal

#: "keep": nothing, as befits a total batch that stays the same; "linear", "sqrt": as the ranks.
Policy = Literal["keep", "linear", "sqrt"]


def factor(policy: Policy, old: int, new: int) -> float:
    """By what the learning rate is multiplied when `old` ranks become `new`.

    Exactly 1 where nothing changes, or where there was no world before (`old` is 0).
    """
    if policy == "keep" or old in (0, new):
        return 1.0
    return new / old if policy == "linear" else math.sqrt(new / old)

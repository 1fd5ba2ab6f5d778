"""The interpreter of a process that remembers much, computes much, and must answer at once."""

from __future__ import annotations

import gc
import sys
from typing import Final

#: Young objects between two collections of the young; collections between two of the next age.
_YOUNG, _MIDDLE, _OLD = 10_000, 10, 1_000
#: Seconds after which a thread that computes lets another one on, which has a message to pass.
_SWITCH_S: Final = 0.001


def be_prompt() -> None:
    """From here on, no thread keeps the others waiting for long.

    Hardly ever look through everything that is remembered: with thousands of teachers a full
    collection stops all threads for longer than an assignment may take, and finds nothing, as what
    the manager drops is freed by its reference count. Young cycles are still found.
    """
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)

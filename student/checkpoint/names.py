"""What folders of checkpoints are called, and who made them when.

`step-000000000100` is one; `step-000000000100-67ab12cd03f1` is another of the same step, or one in
a store that cannot rename. The end tells the second of its making, in 8 hexadecimal digits.
"""

from __future__ import annotations

import os
import re
import time
from typing import Final

_NAME: Final = re.compile(r"step-([0-9]{12})(?:-([0-9a-f]{8})[0-9a-f]{4})?", re.ASCII)
MOST_STEPS: Final = 10**12


def name_of(step: int) -> str:
    """The folder's name; `step` is below `MOST_STEPS`."""
    return f"step-{step:012d}"


def unique_name_of(step: int) -> str:
    """One that no other process makes at the same time."""
    return f"{name_of(step)}-{token()}"


def token() -> str:
    """12 hexadecimal digits: the second of now, and four that are drawn."""
    return f"{int(time.time()) & 0xFFFFFFFF:08x}{os.urandom(2).hex()}"


def step_of(name: str) -> int | None:
    """The step of a folder of that name; None: it is none of a checkpoint."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1])


def begun_s(name: str) -> int | None:
    """When the making of a folder with a token began, in seconds since the epoch."""
    found = _NAME.fullmatch(name)
    return None if found is None or found[2] is None else int(found[2], 16)

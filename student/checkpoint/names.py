"""Names of the folders that hold checkpoints.

| name | of |
|---|---|
| `step-000000000100-g3-67ab12cd03f1` | step 100, saved by generation 3 of an elastic training |
| `step-000000000100` | step 100, saved by a program that uses `Repository` itself |
| `step-000000000100-67ab12cd03f1` | the same: the name was taken, or the store cannot rename |

The last part is a token: the second in which the save began, in 8 hexadecimal digits, and 4 random
ones.
"""

from __future__ import annotations

import os
import re
import time
from typing import Final

_NAME: Final = re.compile(
    r"step-([0-9]{12})(?:-g([0-9]{1,12})(?=-))?(?:-([0-9a-f]{8})[0-9a-f]{4})?", re.ASCII
)
MOST_STEPS: Final = 10**12


def name_of(step: int) -> str:
    """The folder's name; `step` is below `MOST_STEPS`."""
    return f"step-{step:012d}"


def unique_name_of(step: int, generation: int | None = None) -> str:
    """A name that no other process chooses at the same time."""
    saved_by = "" if generation is None else f"-g{generation}"
    return f"{name_of(step)}{saved_by}-{token()}"


def token() -> str:
    """12 hexadecimal digits: the current second, and four random ones."""
    return f"{int(time.time()) & 0xFFFFFFFF:08x}{os.urandom(2).hex()}"


def step_of(name: str) -> int | None:
    """The step of the checkpoint in a folder of that name; None: the name is of something else."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1])


def generation_of(name: str) -> int | None:
    """The generation that saved it; None: a program without generations."""
    found = _NAME.fullmatch(name)
    return None if found is None or found[2] is None else int(found[2])


def begun_s(name: str) -> int | None:
    """When the save into a folder with a token began, in seconds since the epoch."""
    found = _NAME.fullmatch(name)
    return None if found is None or found[3] is None else int(found[3], 16)

"""Wait for a condition instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Far longer than anything takes on a loaded machine: reaching it means a defect, not a slow run.
DEADLINE_S = 60.0


def wait_until(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Return as soon as `condition` holds; AssertionError if it does not within `deadline_s`."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not hold within {deadline_s:g} s"
        time.sleep(0.002)

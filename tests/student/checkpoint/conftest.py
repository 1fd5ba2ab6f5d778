"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

WAIT_S = 20.0


@pytest.fixture
def wait_for() -> Callable[[Callable[[], object]], None]:
    """Waits until its argument is true; fails after a deadline."""

    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, "it never came"
            time.sleep(0.002)

    return wait

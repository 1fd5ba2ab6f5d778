"""What a crowd is told to do, in three phases; SIGUSR1 begins the next one."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Mapping
from typing import Any

#: The line by which a crowd says that everybody is there.
READY = "crowd ready"
#: The line that holds a crowd's figures, as JSON behind it.
FIGURES = "crowd figures "


class Phases:
    """Counts the signals to this process."""

    def __init__(self) -> None:
        self._begun = 0
        self._changed = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._next)

    @property
    def begun(self) -> int:
        return self._begun

    def _next(self) -> None:
        self._begun += 1
        self._changed.set()

    async def reach(self, number: int) -> None:
        """Until so many phases have begun."""
        while self._begun < number:
            await self._changed.wait()
            self._changed.clear()


def ready() -> None:
    """Say that all members are there."""
    print(READY, flush=True)


def tell(figures: Mapping[str, Any]) -> None:
    """Say what was measured; the last word of a crowd."""
    print(FIGURES + json.dumps(figures), flush=True)

"""What a crowd is told to do, in three phases; SIGUSR1 begins the next one."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: The line by which a crowd says that everybody is there.
READY = "crowd ready"
#: The line by which a crowd says that its figures are written.
TOLD = "crowd told"


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


def tell(file: str, figures: Mapping[str, Any]) -> None:
    """Write what was measured, as JSON, and say so: the last word of a crowd."""
    Path(file).write_text(json.dumps(figures))
    print(TOLD, flush=True)

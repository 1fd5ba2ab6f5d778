"""Phases of a crowd's process: SIGUSR1 starts the next one; lines on stdout report progress."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Line printed when all members are present.
READY = "crowd ready"
#: Line printed when the figures are written.
WRITTEN = "crowd figures written"


class Phases:
    """Counts SIGUSR1 signals. Create it in the event loop of the main thread."""

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
        """Wait until `number` signals have come."""
        while self._begun < number:
            await self._changed.wait()
            self._changed.clear()


def report_ready() -> None:
    """Print that all members are present."""
    print(READY, flush=True)


def write_figures(file: str, figures: Mapping[str, Any]) -> None:
    """Write the figures to `file` as JSON, and print that they are written."""
    Path(file).write_text(json.dumps(figures))
    print(WRITTEN, flush=True)

"""Simulated members of a mesh, many in one process, with the real protocols."""

from __future__ import annotations

import asyncio

from ...proto.channel import Channel


class Phases:
    """Counts messages of the benchmark: each begins the next phase.

    Create it in a running event loop, which then reads the channel.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._begun = 0
        self._changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(channel, self._read)

    def _read(self) -> None:
        messages = self._channel.received()
        if messages is None:  # the benchmark has ended, so this process will be killed
            asyncio.get_running_loop().remove_reader(self._channel)
            return
        self._begun += len(messages)
        self._changed.set()

    async def reach(self, number: int) -> None:
        """Wait until phase `number` has begun; phase 0 lasts until the first message."""
        while self._begun < number:
            await self._changed.wait()
            self._changed.clear()

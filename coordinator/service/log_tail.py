"""Follows the logs of the mesh: one reading of the registry for any number of watchers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ...errors import RateLimited, RegistryUnavailable, UnavailableError
from ..registry import LogEntry, Registry
from ..store.records import log_position
from .calls import in_thread

log = logging.getLogger(__name__)

#: Seconds between two looks.
_LOOK_S: Final = 0.2
#: The first look reads so far back, so that nothing is missed between a watcher's own reading of
#: what lies in the log and the first of what comes.
_OVERLAP_MS: Final = 2000
#: Events that a watcher may have before it: twice what the log of one service holds, however many
#: services it watches.
_BEHIND: Final = 20_000

#: A service's name and what its log says.
Said = tuple[str, LogEntry]


class Listener:
    """What one watcher has not sent yet; `service` is the one it watches, empty for all."""

    def __init__(self, service: str) -> None:
        self.service = service
        self._queue: asyncio.Queue[Said | None] = asyncio.Queue(_BEHIND + 1)
        self._lost = False

    def put(self, said: Said) -> None:
        """One more; a watcher that is far behind loses its stream rather than we our memory."""
        if self._queue.qsize() < _BEHIND:
            self._queue.put_nowait(said)
        else:
            self._lost = True

    def end(self) -> None:
        """Nothing comes any more; there is always room for this."""
        if not self._queue.full():
            self._queue.put_nowait(None)

    async def next(self) -> Said:
        """The next one, waiting for it.

        Raises:
            RateLimited: the watcher was so slow that some are lost.
            UnavailableError: nothing comes any more.
        """
        if self._lost:
            raise RateLimited(f"this watcher is {_BEHIND} events behind the log: begin again")
        said = await self._queue.get()
        if said is None:
            raise UnavailableError("this service manager ends: ask another")
        return said


class LogTail:
    """Reads every log that somebody watches, while somebody does. Used by one loop.

    Args:
        registry: where the logs are.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._listeners: set[Listener] = set()
        self._after: dict[str, str] = {}
        self._begin = ""
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def listening(self, service: str) -> Iterator[Listener]:
        """Hear of what comes, and of a little of what came just before."""
        listener = Listener(service)
        self._listeners.add(listener)
        if self._task is None or self._task.done():
            self._after, self._begin = {}, ""
            self._task = asyncio.create_task(self._run())
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    async def stop(self) -> None:
        """End the reading, and all who listen."""
        for listener in self._listeners:
            listener.end()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        answering = True
        while self._listeners:
            try:
                for said in await in_thread(self._look, {each.service for each in self._listeners}):
                    self._tell(said)
                answering = True
            except RegistryUnavailable as error:  # it may come back
                if answering:
                    log.warning("%s; watchers of the log wait", error)
                answering = False
            except Exception:
                log.exception("one look at the log failed")
            await asyncio.sleep(_LOOK_S)

    def _tell(self, said: Said) -> None:
        for listener in self._listeners:
            if listener.service in ("", said[0]):
                listener.put(said)

    def _look(self, watched: set[str]) -> list[Said]:
        """What has come since the last look; in a thread."""
        if not self._begin:
            self._begin = f"{max(0, self._registry.time_ms() - _OVERLAP_MS)}-0"
        services = watched - {""}
        if "" in watched:
            services |= set(self._registry.logs())
        found: list[Said] = []
        for service in services:
            entries = self._registry.events(service, self._after.get(service, self._begin))
            if entries:
                self._after[service] = entries[-1].id
            found += [(service, entry) for entry in entries]
        return in_order(found)


def in_order(said: list[Said]) -> list[Said]:
    """By time; what one service said stays in its order."""
    return sorted(said, key=lambda each: log_position(each[1].id))

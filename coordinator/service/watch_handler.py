"""The method Watch: existing entries of the log, then new ones; one reader for all watchers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from ...proto import coordinator_pb2 as pb
from ...proto.protocols import PROTOCOL_VERSION
from ...runtime.errors import (
    RateLimited,
    RegistryUnavailable,
    UnavailableError,
)
from ..calling.discovery import VERSION_METADATA
from ..manager.messages import event_message
from ..registry import LogEntry, Registry
from ..registry.schema import check_service
from ..store.records import log_position
from .call_guard import CallGuard, Context, ManagerLimits, Places
from .unary_handlers import in_thread

log = logging.getLogger(__name__)

#: Seconds between reads of the logs.
_LOOK_S: Final = 0.2
#: The first read goes back by this many milliseconds, so that a watcher misses no entry between
#: reading the log itself and the first new entry.
_OVERLAP_MS: Final = 2000
#: Most unsent events of a watcher: twice what the log of one service holds.
_BEHIND: Final = 20_000

#: Name of a service and an entry of its log.
ServiceEntry = tuple[str, LogEntry]


class Listener:
    """Unsent events of one watcher of `service`; empty: of all services."""

    def __init__(self, service: str) -> None:
        self.service = service
        self._queue: asyncio.Queue[ServiceEntry | None] = asyncio.Queue(_BEHIND + 1)
        self._lost = False

    def put(self, said: ServiceEntry) -> None:
        """Add an event. End the stream of a watcher that is too far behind, to bound memory."""
        if self._queue.qsize() < _BEHIND:
            self._queue.put_nowait(said)
        else:
            self._lost = True

    def end(self) -> None:
        """End the stream. The queue has room for this."""
        if not self._queue.full():
            self._queue.put_nowait(None)

    async def next(self) -> ServiceEntry:
        """Wait for the next event and return it.

        Raises:
            RateLimited: the watcher is too slow, and events were dropped.
            UnavailableError: this manager stops.
        """
        if self._lost:
            raise RateLimited(f"this watcher is {_BEHIND} events behind the log: start again")
        said = await self._queue.get()
        if said is None:
            raise UnavailableError("this service manager stops: use another")
        return said


class LogTail:
    """Reads the logs of all watched services while there are watchers. Only for one event loop.

    Args:
        registry: has the logs.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._listeners: set[Listener] = set()
        self._after: dict[str, str] = {}
        self._begin = ""
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def listening(self, service: str) -> Iterator[Listener]:
        """Receive new entries, and those of the last seconds."""
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
        """Stop reading and end all streams."""
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
                log.exception("the log could not be read because of a bug")
            await asyncio.sleep(_LOOK_S)

    def _tell(self, said: ServiceEntry) -> None:
        for listener in self._listeners:
            if listener.service in ("", said[0]):
                listener.put(said)

    def _look(self, watched: set[str]) -> list[ServiceEntry]:
        """Return the entries since the last read. Blocks."""
        if not self._begin:
            self._begin = f"{max(0, self._registry.time_ms() - _OVERLAP_MS)}-0"
        services = watched - {""}
        if "" in watched:
            services |= set(self._registry.logs())
        found: list[ServiceEntry] = []
        for service in services:
            entries = self._registry.events(service, self._after.get(service, self._begin))
            if entries:
                self._after[service] = entries[-1].id
            found += [(service, entry) for entry in entries]
        return in_order(found)


def in_order(said: list[ServiceEntry]) -> list[ServiceEntry]:
    """Sort by time; entries of one service keep their order."""
    return sorted(said, key=lambda each: log_position(each[1].id))


#: Seconds within which a stream ends after its credential was withdrawn.
_CHECK_S: Final = 1.0


class WatchHandler:
    """Sends entries of the log to watchers.

    Args:
        registry: has the logs.
        guard: admits callers.
        limits: bounds the number of watchers.
    """

    def __init__(self, registry: Registry, guard: CallGuard, limits: ManagerLimits) -> None:
        self._registry = registry
        self._guard = guard
        self._tail = LogTail(registry)
        self._places = Places("watchers of the log", limits.watchers, limits.watchers_per_principal)

    async def stop(self) -> None:
        """Stop reading the log."""
        await self._tail.stop()

    async def handle(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Serve one call."""
        caller = await self._guard.admit(context, "viewer")
        try:
            with self._places.one(caller.principal):
                request = await self._guard.first(requests, pb.WatchRequest())
                if request.service:
                    check_service(request.service)
                await self._serve(request, context)
        except Exception as error:
            await self._guard.refuse(context, error)

    async def _serve(self, request: pb.WatchRequest, context: Context) -> None:
        # At once, to show the caller that this manager does not hang.
        await context.send_initial_metadata(((VERSION_METADATA, str(PROTOCOL_VERSION)),))
        if not request.follow:
            _, past = await in_thread(self._past, request)
            await self._write(context, past)
            return
        with self._tail.listening(request.service) as listener:
            # Listening first, so that no entry between both is missed.
            sent, past = await in_thread(self._past, request)
            before_all = log_position("")
            await self._write(context, past)
            while True:
                self._guard.check_again(context, "viewer")
                try:
                    async with asyncio.timeout(_CHECK_S):
                        service, entry = await listener.next()
                except TimeoutError:
                    continue
                place = log_position(entry.id)
                if place > sent.get(service, before_all):
                    sent[service] = place
                    await self._write(context, [(service, entry)])

    def _past(
        self, request: pb.WatchRequest
    ) -> tuple[dict[str, tuple[int, int]], list[ServiceEntry]]:
        """Return the position of the last entry of each log, and the entries to send."""
        services = [request.service] if request.service else self._registry.logs()
        logs = {each: self._registry.events(each, last=request.last) for each in services}
        read = {each: log_position(log[-1].id) for each, log in logs.items() if log}
        said = [(service, entry) for service, log in logs.items() for entry in log]
        return read, in_order(said)[-request.last :]  # 0: all

    async def _write(self, context: Context, said: Iterable[ServiceEntry]) -> None:
        for service, entry in said:
            await self._guard.write(context, event_message(service, entry))

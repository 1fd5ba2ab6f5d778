"""Reads the mesh once for all open pages, and only while a page is open."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from ...proto import coordinator_pb2 as pb
from ...runtime.errors import EdlError, RateLimited
from .picture import Document, Picture


class Source(Protocol):
    """A mesh to show. The methods may block briefly, and are called in worker threads."""

    def status(self) -> pb.MeshStatus:
        """Return the live teachers and students and the assignments. Raises EdlError."""
        ...

    def events(self, service: str, after: str, last: int) -> Sequence[pb.Event]:
        """Return events of the log of a service, oldest first. Raises EdlError.

        Args:
            service: name of the service.
            after: return only events after the one with this id; empty: from the oldest on.
            last: return at most this many events, the latest; 0: all.
        """
        ...

    def drain(self, service: str, teacher_id: str) -> None:
        """Ask a teacher to finish its requests and leave. Raises UsageError, EdlError."""
        ...


log = logging.getLogger(__name__)

#: Seconds between reads of a small mesh, and of a large one.
FAST_S: Final = 0.5
SLOW_S: Final = 5.0
#: Most teachers and students that are read every `FAST_S`.
_FAST_MEMBERS: Final = 1500
_LOG: Final = 500
_LOG_AT_FIRST: Final = 200
_BACKLOG: Final = 8
#: Most open pages.
MAX_VIEWERS: Final = 32

Message = dict[str, Any]


class Feed:
    """Polls a source, and sends the changes to every viewer. Only for one event loop.

    Args:
        source: the mesh; its methods run in worker threads.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._picture = Picture()
        self._events: deque[Message] = deque(maxlen=_LOG)
        self._seen: dict[str, str] = {}
        self._viewers: set[asyncio.Queue[str | None]] = set()
        self._new: set[asyncio.Queue[str | None]] = set()
        self._wanted = asyncio.Event()
        self._error = ""
        self._mistake = ""
        self._ended = False

    async def run(self) -> None:
        """Poll until cancelled; then end every stream."""
        try:
            while True:
                await self._wanted.wait()
                began_s = time.monotonic()
                await self._round()
                pause_s = began_s + interval_s(self._members()) - time.monotonic()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._newcomer(), max(0.05, pause_s))
        finally:
            self._ended = True
            for viewer in self._viewers | self._new:
                viewer.put_nowait(None)

    @contextmanager
    def viewing(self) -> Iterator[AsyncIterator[str]]:
        """Count a page as a viewer while the body runs, and yield its messages.

        Each message is a JSON object. The first one has the whole mesh, the others have changes.

        Raises:
            RateLimited: too many pages are open.
        """
        if len(self._viewers) + len(self._new) >= MAX_VIEWERS:
            raise RateLimited(f"{MAX_VIEWERS} pages are open on this manager: close one")
        viewer: asyncio.Queue[str | None] = asyncio.Queue()
        self._new.add(viewer)
        self._wanted.set()
        try:
            yield self._messages(viewer)
        finally:
            self._viewers.discard(viewer)
            self._new.discard(viewer)
            if not self._viewers and not self._new:
                self._wanted.clear()

    async def _messages(self, viewer: asyncio.Queue[str | None]) -> AsyncIterator[str]:
        while not self._ended and (message := await viewer.get()) is not None:
            yield message

    async def _newcomer(self) -> None:
        while not self._new:
            await asyncio.sleep(0.05)

    async def _round(self) -> None:
        changes: Document = {}
        events: list[Message] = []
        try:
            status, news = await asyncio.to_thread(self._read)
            changes = self._picture.update(status, news, time.monotonic())
            events = [_event(event) for event in news]
            now_ms, self._error = status.redis_time_ms, ""
        except EdlError as error:
            now_ms, self._error = 0, str(error)
        except Exception as error:  # a bug must not end the page
            if repr(error) != self._mistake:
                log.exception("a bug: the mesh could not be read for the page; it tries again")
            self._mistake = repr(error)
            now_ms, self._error = 0, "this manager could not read the mesh; see its log"
        self._events.extend(events)
        self._tell({"now_ms": now_ms, "error": self._error}, changes, events)

    def _read(self) -> tuple[pb.MeshStatus, list[pb.Event]]:
        status = self._source.status()
        news: list[pb.Event] = []
        for service in status.services:
            seen = self._seen.get(service.name, "")
            found = self._source.events(service.name, seen, 0 if seen else _LOG_AT_FIRST)
            if found:
                self._seen[service.name] = found[-1].id
                news += found
        news.sort(key=lambda event: event.time_ms)
        return status, news

    def _tell(self, head: Message, changes: Document, events: list[Message]) -> None:
        change = _json(head | {"changes": changes, "events": events})
        whole = ""
        for viewer in self._viewers | self._new:
            behind = viewer.qsize() >= _BACKLOG
            if viewer in self._viewers and not behind:
                viewer.put_nowait(change)
                continue
            whole = whole or self._whole(head)
            while behind and not viewer.empty():  # the whole mesh replaces unread changes
                viewer.get_nowait()
            viewer.put_nowait(whole)
        self._viewers |= self._new
        self._new.clear()

    def _whole(self, head: Message) -> str:
        return _json(
            head
            | {
                "whole": self._picture.document,
                "events": list(self._events),
                "interval_s": interval_s(self._members()),
            }
        )

    def _members(self) -> int:
        document = self._picture.document
        return len(document["teachers"]) + len(document["students"])


def interval_s(members: int) -> float:
    """Return the seconds between reads of a mesh with this many members."""
    return min(SLOW_S, max(FAST_S, FAST_S * members / _FAST_MEMBERS))


def _event(event: pb.Event) -> Message:
    return {
        "service": event.service,
        "id": event.id,
        "time_ms": event.time_ms,
        "kind": event.kind,
        "subject": event.subject,
        "text": event.text,
        "gained": sorted(set(event.after) - set(event.before)),
        "lost": sorted(set(event.before) - set(event.after)),
    }


def _json(message: Message) -> str:
    return json.dumps(message, separators=(",", ":"))

"""The messages for open pages. The mesh is read once for all of them, while any page is open.

A page draws a document of four tables. The key of a teacher or student is "service id":

```
{"mesh":     {"": {"managers": [...]}},
 "services": {name: {...}},
 "teachers": {"service teacher_id": {...}},
 "students": {"service student_id": {...}}}
```
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from google.protobuf.message import Message as ProtobufMessage

from ...proto import coordinator_pb2 as pb
from ...runtime.errors import EdlError, RateLimited
from .. import operations
from ..manager.manager import Manager
from ..manager.messages import event_message
from ..manager.overview import state_of
from ..registry import Registry
from ..store.records import WrongKeyType

log = logging.getLogger(__name__)

#: Seconds between reads of a small mesh, and of a large one.
FAST_S: Final = 0.5
SLOW_S: Final = 5.0
#: A mesh with at most this many teachers and students in total is read every `FAST_S` seconds.
_FAST_MEMBERS: Final = 1500
#: Events kept for new pages, and events of each service that are read at first.
_EVENTS_KEPT: Final = 500
_EVENTS_AT_FIRST: Final = 200
#: If a page has this many unread messages, one message with the whole mesh replaces them.
_BACKLOG: Final = 8
#: Maximum number of open pages.
MAX_VIEWERS: Final = 32

#: Maximum number of teachers, and of students, of each service on the page.
_MAX_MEMBERS: Final = 1000

Message = dict[str, Any]


class MeshSource:
    """The mesh as one manager and its registry know it. The methods may block briefly.

    They raise RedisUnavailable or AccessError if the registry does not answer or refuses.

    Args:
        manager: returns the status.
        registry: has the log, and receives drain requests.
    """

    def __init__(self, manager: Manager, registry: Registry) -> None:
        self._manager = manager
        self._registry = registry

    def status(self) -> pb.MeshStatus:
        """Return the live teachers and students and the assignments."""
        return self._manager.status(max_members=_MAX_MEMBERS)

    def events(self, service: str, after: str, last: int) -> Sequence[pb.Event]:
        """Return events of the log of a service, oldest first.

        Args:
            service: name of the service.
            after: return only events after the event with this id; empty: from the oldest.
            last: return only so many of the latest events; 0: all.
        """
        return [event_message(service, e) for e in self._registry.events(service, after, last)]

    def drain(self, service: str, teacher_id: str) -> None:
        """Ask a teacher to drain. Raises UsageError if there is no such teacher."""
        operations.drain(self._registry, service=service, teacher_id=teacher_id)


class Feed:
    """Polls a source, and sends the changes to every viewer. Only for one event loop.

    Args:
        source: the mesh; its methods run in worker threads.
    """

    def __init__(self, source: MeshSource) -> None:
        self._source = source
        self._latest = LatestDocument()
        self._events: deque[Message] = deque(maxlen=_EVENTS_KEPT)
        self._seen: dict[str, str] = {}  # service -> id of its last read event
        self._unreadable: set[str] = set()  # services whose log could not be read
        # queue of messages for a viewer -> whether the viewer was sent the whole mesh
        self._viewers: dict[asyncio.Queue[str | None], bool] = {}
        self._has_viewers = asyncio.Event()
        self._last_bug = ""
        self._ended = False

    async def run(self) -> None:
        """Poll until cancelled; then end every stream."""
        try:
            while True:
                await self._has_viewers.wait()
                began_s = time.monotonic()
                await self._round()
                pause_s = began_s + interval_s(self._members()) - time.monotonic()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wait_for_new_viewer(), max(0.05, pause_s))
        finally:
            self._ended = True
            for viewer in self._viewers:
                viewer.put_nowait(None)

    @contextmanager
    def viewing(self) -> Iterator[AsyncIterator[str]]:
        """Count a page as a viewer while the block runs, and yield its messages.

        Each message is a JSON object. The first one has the whole mesh. If a page is slow, a
        message with the whole mesh replaces its unread ones. The others have changes.

        Raises:
            RateLimited: too many pages are open.
        """
        if len(self._viewers) >= MAX_VIEWERS:
            raise RateLimited(f"{MAX_VIEWERS} pages are open on this manager: close one")
        viewer: asyncio.Queue[str | None] = asyncio.Queue()
        self._viewers[viewer] = False
        self._has_viewers.set()
        try:
            yield self._messages(viewer)
        finally:
            del self._viewers[viewer]
            if not self._viewers:
                self._has_viewers.clear()

    async def _messages(self, viewer: asyncio.Queue[str | None]) -> AsyncIterator[str]:
        while not self._ended and (message := await viewer.get()) is not None:
            yield message

    async def _wait_for_new_viewer(self) -> None:
        while all(self._viewers.values()):
            await asyncio.sleep(0.05)

    async def _round(self) -> None:
        changes: Document = {}
        events: list[Message] = []
        try:
            status, new_events = await asyncio.to_thread(self._read)
            changes = self._latest.update(status, new_events, time.monotonic())
            events = [_event(event) for event in new_events]
            now_ms, problem = status.redis_time_ms, ""
        except EdlError as error:
            now_ms, problem = 0, str(error)
        except Exception as error:  # a bug must not end the page
            if repr(error) != self._last_bug:
                log.exception("a bug: the mesh could not be read for the page; trying again")
            self._last_bug = repr(error)
            now_ms, problem = 0, "this manager could not read the mesh; see its log"
        self._events.extend(events)
        self._send({"now_ms": now_ms, "error": problem}, changes, events)

    def _read(self) -> tuple[pb.MeshStatus, list[pb.Event]]:
        status = self._source.status()
        new_events: list[pb.Event] = []
        for service in status.services:
            seen = self._seen.get(service.name, "")
            try:
                events = self._source.events(service.name, seen, 0 if seen else _EVENTS_AT_FIRST)
            except WrongKeyType as error:  # all else is shown
                if service.name not in self._unreadable:
                    log.warning("service %s: its log is not shown: %s", service.name, error)
                self._unreadable.add(service.name)
                continue
            self._unreadable.discard(service.name)
            if events:
                self._seen[service.name] = events[-1].id
                new_events += events
        new_events.sort(key=lambda event: event.time_ms)
        return status, new_events

    def _send(self, head: Message, changes: Document, events: list[Message]) -> None:
        change = _json(head | {"changes": changes, "events": events})
        whole = ""
        for viewer, has_whole in self._viewers.items():
            behind = viewer.qsize() >= _BACKLOG
            if has_whole and not behind:
                viewer.put_nowait(change)
                continue
            whole = whole or self._whole(head)
            while behind and not viewer.empty():  # the whole mesh replaces unread changes
                viewer.get_nowait()
            viewer.put_nowait(whole)
        self._viewers = dict.fromkeys(self._viewers, True)

    def _whole(self, head: Message) -> str:
        whole = {"whole": self._latest.document, "events": list(self._events)}
        return _json(head | whole | {"interval_s": interval_s(self._members())})

    def _members(self) -> int:
        document = self._latest.document
        return len(document["teachers"]) + len(document["students"])


def interval_s(members: int) -> float:
    """Return the seconds between reads of a mesh with this many members."""
    return min(SLOW_S, max(FAST_S, FAST_S * members / _FAST_MEMBERS))


def _event(event: pb.Event) -> Message:
    return _fields(event, ("service", "id", "time_ms", "kind", "subject", "text")) | {
        "gained": sorted(set(event.after) - set(event.before)),
        "lost": sorted(set(event.before) - set(event.after)),
    }


def _fields(message: ProtobufMessage, names: Iterable[str]) -> Row:
    """Return the fields of a message that have the same names on the page."""
    return {name: getattr(message, name) for name in names}


def _json(message: Message) -> str:
    return json.dumps(message, separators=(",", ":"))


Row = dict[str, Any]
Document = dict[str, dict[str, Row]]

TABLES: Final = ("mesh", "services", "teachers", "students")
#: Seconds for which a teacher that has left or was lost stays in the picture.
DEPARTED_S: Final = 10.0


class LatestDocument:
    """The latest document, with teachers that recently left or were lost."""

    def __init__(self) -> None:
        self.document: Document = {table: {} for table in TABLES}
        self._updated_s = float("-inf")
        self._departed: dict[str, tuple[float, Row]] = {}  # key -> since when, last row
        # key -> when the event was read, when it happened (ms by Redis's clock), its kind
        self._causes: dict[str, tuple[float, int, str]] = {}

    def update(self, status: pb.MeshStatus, events: Iterable[pb.Event], now: float) -> Document:
        """Replace the document; return the changes (see `difference`).

        Args:
            status: status of the mesh.
            events: events of its log since the last update.
            now: seconds of a monotonic clock.
        """
        for event in events:
            if event.kind in ("lost", "left"):
                cause = now, event.time_ms, event.kind
                self._causes[f"{event.service} {event.subject}"] = cause
        document = document_of(status)
        for key, (_, time_ms, _) in self._causes.items():
            if time_ms > status.redis_time_ms:  # the status is cached, and older than the log
                document["teachers"].pop(key, None)
        self._keep_departed(document["teachers"], now)
        self._updated_s = now
        changes = difference(self.document, document)
        self.document = document
        return changes

    def _keep_departed(self, teachers: dict[str, Row], now: float) -> None:
        # After a long time without an update (no page was open, or the mesh could not be read),
        # teachers may have been gone for days.
        followed = now - self._updated_s < DEPARTED_S
        for key, row in self.document["teachers"].items():
            if followed and key not in teachers and key not in self._departed:
                left = row["state"] == "draining"
                departed = row | {"state": "left" if left else "lost", "in_flight": 0, "rate": 0.0}
                self._departed[key] = now, departed
        self._departed = {
            key: (since, departed)
            for key, (since, departed) in self._departed.items()
            if key not in teachers and now - since < DEPARTED_S
        }
        self._causes = {
            key: cause for key, cause in self._causes.items() if now - cause[0] < DEPARTED_S
        }
        for key, (_, departed) in self._departed.items():
            cause = self._causes.get(key)
            teachers[key] = departed | ({"state": cause[2]} if cause else {})


def document_of(status: pb.MeshStatus) -> Document:
    """Return the document of a status."""
    document: Document = {table: {} for table in TABLES}
    document["mesh"][""] = {"managers": sorted(status.managers)}
    for service in status.services:
        document["services"][service.name] = _service(service)
        served = {teacher for student in service.students for teacher in student.assigned}
        for teacher in service.teachers:
            key = f"{service.name} {teacher.teacher_id}"
            row = _teacher(service.name, teacher, status.redis_time_ms)
            row["state"] = _state(teacher, teacher.teacher_id in served)
            document["teachers"][key] = row
        for student in service.students:
            key = f"{service.name} {student.report.student_id}"
            document["students"][key] = _student(service.name, student, status.redis_time_ms)
    return document


def difference(before: Document, after: Document) -> Document:
    """Return the changed fields of each changed row; None: the row is gone."""
    changes: Document = {}
    for table in TABLES:
        old, new = before[table], after[table]
        rows: dict[str, Any] = {}
        for key, row in new.items():
            former = old.get(key)
            if former is None:
                rows[key] = row
            elif former != row:
                rows[key] = {name: value for name, value in row.items() if former[name] != value}
        rows.update((key, None) for key in old if key not in new)
        if rows:
            changes[table] = rows
    return changes


def _state(teacher: pb.Teacher, has_student: bool) -> str:
    state = state_of(teacher.admission, teacher.state)
    return "idle" if state == "serving" and not has_student else state


_TEACHER_FIELDS: Final = (
    "address", "device", "protocol", "voucher", "model", "verified", "admission", "slots", "lanes",
    "in_flight",
)  # fmt: skip


def _teacher(service: str, teacher: pb.Teacher, now_ms: int) -> Row:
    return _fields(teacher, _TEACHER_FIELDS) | {
        "service": service,
        "id": teacher.teacher_id,
        "host": teacher.host or teacher.address.rpartition("://")[2].rpartition(":")[0],
        "content": teacher.content_id,
        "numerics": teacher.numerics_id,
        "t_t": _short(teacher.t_t_seconds),
        "rate": _short(teacher.samples_per_second),
        "since_ms": teacher.incarnation,
        "until_ms": _deadline(now_ms, teacher.lease_remaining_s),
    }


_REPORT_FIELDS: Final = (
    "host", "state", "want", "min", "needed", "priority", "unreachable", "resends", "hedges",
)  # fmt: skip


def _student(service: str, student: pb.StudentStatus, now_ms: int) -> Row:
    report = student.report
    return {
        **_fields(report, _REPORT_FIELDS),
        **_rate_and_waits(report),
        "service": service,
        "id": report.student_id,
        "teachers": sorted(student.assigned),
        "reason": student.reason,
        "volume": report.volume_bytes,
        "lower": report.lower_bytes,
        "upper": report.upper_bytes,
        "samples": report.samples_delivered,
        "slow": sorted(report.stragglers),
        "disputed": sorted(report.disputed),
        "ejected": sorted(map(list, zip(report.ejected, report.ejected_for, strict=False))),
        "t_s": _short(report.t_s_seconds),
        "t_t": _short(report.t_t_seconds),
        "epoch": report.data_epoch,
        "content": report.content_id,
        "until_ms": _deadline(now_ms, student.lease_remaining_s),
    }


def _service(service: pb.ServiceStatus) -> Row:
    return {
        **_fields(service, ("leader", "term", "counter", "wanted", "assigned", "upgrade_at")),
        **_rate_and_waits(service),
        "teachers": service.teacher_count or len(service.teachers),
        "students": service.student_count or len(service.students),
        "shown": len(service.teachers),
        "content": service.content_id,
        "next_content": service.next_content_id,
        "content_students": dict(sorted(service.content_students.items())),
    }


def _rate_and_waits(message: pb.StudentReport | pb.ServiceStatus) -> Row:
    """Return samples per second, and seconds of waiting."""
    return {
        "rate": _short(message.samples_per_second),
        "starved": round(message.starved_seconds, 1),
        "blocked": round(message.blocked_seconds, 1),
        "source_wait": round(message.source_wait_seconds, 1),
    }


def _deadline(now_ms: int, remaining_s: float) -> int:
    """Return when a lease ends, in ms of Redis's clock, rounded so that it rarely changes."""
    return round(now_ms / 100 + remaining_s * 10) * 100


def _short(number: float) -> float:
    """Round to three digits: the page shows no more."""
    return float(f"{number:.3g}")

"""Entries of the log as messages: the registry keeps a `LogEntry`, the wire has an `Event`."""

from __future__ import annotations

from ...proto import coordinator_pb2 as pb
from ..registry.records import LogEntry


def event_message(service: str, entry: LogEntry) -> pb.Event:
    """What a log says, as it is sent."""
    return pb.Event(
        service=service,
        id=entry.id,
        time_ms=entry.time_ms,
        kind=entry.kind,
        subject=entry.subject,
        text=entry.text,
        before=entry.before,
        after=entry.after,
    )

"""JSON in the store: facts that members and leaders publish, and timelines of events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...runtime.errors import UsageError
from . import Store
from .records import Append

#: Values that JSON can hold.
Facts = Mapping[str, Any]

_MOST_BYTES: Final = 1 << 20


def dump_facts(facts: Facts) -> str:
    """Return facts as JSON. Raises UsageError if they are not JSON or larger than 1 MiB."""
    try:
        text = json.dumps(dict(facts), separators=(",", ":"), allow_nan=True)
    except (TypeError, ValueError) as error:
        raise UsageError(f"facts of a member must be JSON: {error}") from None
    if len(text) > _MOST_BYTES:
        raise UsageError(f"facts are {len(text)} bytes, more than 1 MiB: {str(facts)[:80]}")
    return text


def load_facts(text: str) -> dict[str, Any]:
    """Parse the facts of `dump_facts`; {} if the text is invalid."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """An entry of a timeline or log; entry ids are ordered, and reads continue after one."""

    entry_id: str
    at_ms: int
    body: Facts


def timeline_entry(key: str, body: Facts, kept: int, keep_s: float) -> Append:
    """Return the change that appends to a timeline, of which the last `kept` entries are kept."""
    return Append(key, {"body": dump_facts(body)}, kept, keep_s)


def read_timeline(store: Store, key: str, since: str, count: int) -> list[TimelineEntry]:
    """Return the first `count` entries after id `since`, oldest first; "": from the start."""
    return [
        TimelineEntry(one.id, one.time_ms, load_facts(one.fields.get("body", "")))
        for one in store.log(key, since, count)
    ]


def check_ttl(ttl_s: float) -> float:
    """Return a time to live in seconds. Raises UsageError if it is out of range."""
    if not 0.001 <= ttl_s <= 86_400:
        raise UsageError(f"a time to live is 0.001 to 86400 seconds, not {ttl_s!r}")
    return ttl_s

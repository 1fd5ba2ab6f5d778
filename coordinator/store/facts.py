"""Facts that members and leaders publish: JSON in a field of a document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from ...runtime.errors import UsageError

#: What travels as JSON: texts, numbers, lists, dicts, None.
Facts = Mapping[str, Any]

_MOST_BYTES: Final = 1 << 20


def dump_facts(facts: Facts) -> str:
    """Facts as JSON; raises UsageError where they are none, or larger than 1 MiB."""
    try:
        text = json.dumps(dict(facts), separators=(",", ":"), allow_nan=True)
    except (TypeError, ValueError) as error:
        raise UsageError(f"facts of a member are JSON: {error}") from None
    if len(text) > _MOST_BYTES:
        raise UsageError(f"{len(text)} bytes of facts are too much, of {str(facts)[:80]}")
    return text


def load_facts(text: str) -> dict[str, Any]:
    """Facts that `dump_facts` made; none where somebody else put something in their place."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def check_ttl(ttl_s: float) -> float:
    """Return a time to live in seconds; raises UsageError where it is none."""
    if not 0.001 <= ttl_s <= 86_400:
        raise UsageError(f"a time to live is 0.001 to 86400 seconds, not {ttl_s!r}")
    return ttl_s

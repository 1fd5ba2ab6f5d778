"""Facts that members and leaders publish, as JSON in a field of a document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from ...runtime.errors import UsageError

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


def check_ttl(ttl_s: float) -> float:
    """Return a time to live in seconds. Raises UsageError if it is out of range."""
    if not 0.001 <= ttl_s <= 86_400:
        raise UsageError(f"a time to live is 0.001 to 86400 seconds, not {ttl_s!r}")
    return ttl_s

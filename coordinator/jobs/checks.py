"""What both boards check of what they are given, and how they write it down."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from ...errors import GenerationSuperseded, UsageError
from ...scheduler.students.shards import Shard
from .board import Facts

#: A shard's place among all is a whole double: epoch * EPOCH_PLACES + start.
EPOCH_PLACES: Final = 1 << 32
_EPOCHS: Final = 1 << 20
_TEXT_BYTES: Final = 1 << 20
#: What `written` makes of none.
NO_FACTS: Final = "{}"


def written(facts: Facts) -> str:
    """Facts as JSON; raises UsageError where they are none, or larger than 1 MiB."""
    try:
        text = json.dumps(dict(facts), separators=(",", ":"), allow_nan=True)
    except (TypeError, ValueError) as error:
        raise UsageError(f"what stands on a job board is JSON: {error}") from None
    if len(text) > _TEXT_BYTES:
        raise UsageError(f"{len(text)} bytes are too much for a job board, of {str(facts)[:80]}")
    return text


def read(text: str) -> dict[str, Any]:
    """Facts that `written` made; none where somebody else put something in their place."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def check_ttl(ttl_s: float) -> int:
    """A time to live in milliseconds."""
    if not 0.001 <= ttl_s <= 86_400:
        raise UsageError(f"a node's time to live is 0.001 to 86400 seconds, not {ttl_s!r}")
    return round(ttl_s * 1000)


def check_epoch(epoch: int) -> int:
    if not 0 <= epoch < _EPOCHS:
        raise UsageError(f"epochs count from 0 to {_EPOCHS - 1}, {epoch!r} is none")
    return epoch


def check_shards(shards: Sequence[Shard]) -> Sequence[Shard]:
    """Shards that do not overlap; raises UsageError where they do, or one is empty."""
    end = 0
    for start, stop in sorted(shards):
        if start < end or stop <= start or stop > EPOCH_PLACES:
            raise UsageError(
                f"shards are ranges of positions that share none, [{start}, {stop}) is not one"
            )
        end = stop
    return shards


def superseded(job: str, generation: int, current: int | None) -> GenerationSuperseded:
    """The error of whoever speaks for a generation that is not the current one."""
    now = "there is none now" if current is None else f"generation {current} is the current one"
    return GenerationSuperseded(
        f"generation {generation} of job {job} is over: {now}; its ranks end, and go on there"
    )

"""Which changes of facts managers hear of; all others reach `edl status` only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from .records import Kind

#: Facts of a teacher that change with every batch.
_VOLATILE: Final = frozenset({"in_flight", "samples_per_second"})
#: Facts of a student on which assignments depend.
_WANTED: Final = frozenset(
    {
        "want", "min", "priority", "needed", "state", "unreachable", "unavailable", "cut_off",
        "data_epoch", "content_id", "incarnation", "t_t_seconds", "t_s_seconds", "host", "owner",
        "secret",
    }
)  # fmt: skip
#: Measured: only a move by more than a tenth is news.
_MEASURED: Final = frozenset({"t_t_seconds", "t_s_seconds"})
_NEWS: Final = 0.1


def are_volatile(facts: Iterable[str]) -> bool:
    """Whether these facts of a teacher change all the time, so that they may be told late."""
    return _VOLATILE.issuperset(facts)


def concerns_managers(
    kind: Kind, facts: Iterable[str] | Mapping[str, str], noted: Mapping[str, str] | None = None
) -> bool:
    """Whether a change of these facts is noted for managers.

    Args:
        kind: whose facts.
        facts: those that changed; their names are enough without `noted`.
        noted: the facts as they were when managers were last told, not merely last written, so
            that many small steps add up. With it, a measured time that moved by less than a tenth
            is no news, nor is a student's state that changes between others than "starved".
    """
    told = set(facts)
    concerning = told & _WANTED if kind == "students" else told - _VOLATILE
    if noted is None or not isinstance(facts, Mapping):
        return bool(concerning)
    return any(_is_news(kind, name, noted.get(name), facts[name]) for name in concerning)


def _is_news(kind: Kind, name: str, before: str | None, now: str) -> bool:
    if before is None or before == now:
        return before is None
    if name in _MEASURED:
        return _moved(before, now)
    if name == "state" and kind == "students":
        return (before == "starved") != (now == "starved")
    return True


def _moved(before: str, now: str) -> bool:
    try:
        old, new = float(before), float(now)
    except ValueError:
        return True
    if not (math.isfinite(old) and math.isfinite(new)):
        return True
    return abs(new - old) > _NEWS * abs(old)

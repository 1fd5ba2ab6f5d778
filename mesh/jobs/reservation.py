"""Reserves slots of a fleet for an online service."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from ...coordinator.job_queue import QueueBoard
from ...runtime.errors import EdlError, UsageError
from ...runtime.lifecycle import Stop

log = logging.getLogger(__name__)

#: In seconds: TTL of a reservation, and the intervals of its renewals and of checks whether its
#: slots are free.
TTL_S: Final = 5.0
_RENEWAL_S: Final = 1.0
_POLL_S: Final = 0.1


def hold_slots(
    board: QueueBoard,
    name: str,
    slots: int,
    for_s: float | None,
    stop: Stop,
    say: Callable[[str], None],
) -> None:
    """Reserve slots until `stop` is requested, or for `for_s` seconds.

    Args:
        board: job queue of the fleet.
        name: name of the reservation.
        slots: number of slots.
        for_s: duration in seconds; None: until `stop`.
        stop: ends the reservation.
        say: called with a line of text when the slots are free, and at the end.

    Raises:
        UsageError: the name is taken, no fleet runs, or the fleet has fewer slots.
        EdlError: Redis does not answer at the start. Later errors are logged.
    """
    _check(board, name, slots)
    began_s = renewed_s = time.monotonic()
    board.reserve(name, slots, TTL_S)
    is_free = False
    try:
        while for_s is None or time.monotonic() - began_s < for_s:
            if stop.wait(_RENEWAL_S / 2 if is_free else _POLL_S):
                break
            try:
                if time.monotonic() - renewed_s > _RENEWAL_S:
                    board.reserve(name, slots, TTL_S)
                    renewed_s = time.monotonic()
                if not is_free and (text := _describe_free_slots(board, name, slots)):
                    is_free = True
                    say(f"{text} free after {time.monotonic() - began_s:.1f} s")
            except EdlError as error:
                log.warning("the reservation is not prolonged: %s", error)
    finally:
        try:
            board.unreserve(name)
        except EdlError as error:
            log.warning("the reservation ends in %g s, as it cannot be deleted: %s", TTL_S, error)
    say("given back" if is_free else f"cancelled before {slots} slots were free")


def _check(board: QueueBoard, name: str, slots: int) -> None:
    if any(one.name == name for one in board.reservations()):
        raise UsageError(f"there is a reservation {name!r} already: take another --name")
    runner = board.runner()
    if runner is None:
        raise UsageError("no fleet runs jobs now, so there is nothing to take slots from")
    if slots > (there := int(runner.facts.get("slots", 0))):
        raise UsageError(f"the fleet has {there} slots, {slots} cannot be reserved")


def _describe_free_slots(board: QueueBoard, name: str, slots: int) -> str:
    """Describe the slots once the fleet keeps all of them free; return "" until then."""
    runner = board.runner()
    if runner is None:
        return ""
    kept = runner.facts.get("kept", {}).get(name, [])
    if len(kept) < slots:
        return ""
    cores = runner.facts.get("cores", [])
    words = []
    for slot in kept:
        numbers = ", ".join(map(str, cores[slot])) if slot < len(cores) else ""
        words.append(f"slot {slot}" + (f" (cores {numbers})" if numbers else ""))
    return ", ".join(words) + (" is" if len(words) == 1 else " are")

"""Keeps slots of a fleet free for an online service, as long as it is asked to."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from ...coordinator.queue import QueueBoard
from ...errors import EdlError, UsageError
from ...lifecycle import Stop

log = logging.getLogger(__name__)

#: A reservation that was not prolonged for so long is over; how often it is, and looked for.
TTL_S: Final = 5.0
_BEAT_S: Final = 1.0
_LOOK_S: Final = 0.1


def hold(
    board: QueueBoard,
    name: str,
    slots: int,
    for_s: float | None,
    stop: Stop,
    say: Callable[[str], None],
) -> None:
    """Ask for slots until `stop` is requested, or `for_s` seconds are over.

    Args:
        board: of the queue.
        name: of who needs them.
        slots: how many.
        for_s: None: until `stop`.
        stop: ends it.
        say: told when the slots are there.

    Raises:
        UsageError: somebody holds a reservation of that name, or the fleet has fewer slots.
        EdlError: Redis does not answer at the beginning.
    """
    _check(board, name, slots)
    began_s = beaten_s = time.monotonic()
    board.reserve(name, slots, TTL_S)
    said = False
    try:
        while for_s is None or time.monotonic() - began_s < for_s:
            if stop.wait(_BEAT_S / 2 if said else _LOOK_S):
                break
            try:
                if time.monotonic() - beaten_s > _BEAT_S:
                    board.reserve(name, slots, TTL_S)
                    beaten_s = time.monotonic()
                if not said and (where := _where(board, name, slots)):
                    said = True
                    say(f"{where} free after {time.monotonic() - began_s:.1f} s")
            except EdlError as error:
                log.warning("the reservation is not prolonged: %s", error)
    finally:
        board.unreserve(name)
    say("given back" if said else f"given up: the fleet had not freed {slots} slots")


def _check(board: QueueBoard, name: str, slots: int) -> None:
    if any(one.name == name for one in board.reservations()):
        raise UsageError(f"there is a reservation {name!r} already: take another --name")
    runner = board.runner()
    if runner is None:
        raise UsageError("no fleet runs jobs now, so there is nothing to take slots from")
    if slots > (there := int(runner.facts.get("slots", 0))):
        raise UsageError(f"the fleet has {there} slots, {slots} cannot be reserved")


def _where(board: QueueBoard, name: str, slots: int) -> str:
    """The slots, in words, once all of them are kept; empty until then."""
    runner = board.runner()
    if runner is None:
        return ""
    kept = runner.facts.get("kept", {}).get(name, [])
    if len(kept) < slots:
        return ""
    cores = runner.facts.get("cores", [])
    words = []
    for slot in kept:
        own = ", ".join(map(str, cores[slot])) if slot < len(cores) else ""
        words.append(f"slot {slot}" + (f" (cores {own})" if own else ""))
    return ", ".join(words) + (" is" if len(words) == 1 else " are")

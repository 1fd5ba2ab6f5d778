"""Jobs in a queue in Redis that a fleet (`edl agent jobs`) runs; reservations of its slots."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from ...coordinator.job_queue import (
    EVENTS_KEPT,
    PIECES_KEPT,
    DesiredJobState,
    JobProgress,
    QueueBoard,
    QueuedJob,
)
from ...coordinator.ops.queue_view import NO_FLEET, fleet_line, is_lost
from ...coordinator.store.records import TimelineEntry
from ...runtime.errors import EdlError, UsageError
from ...runtime.lifecycle import Stop
from .backend import Listing, follow_log, not_ended
from .spec import QueuedJobSpec

log = logging.getLogger(__name__)

#: Seconds between reads of logs that are followed.
_LOG_POLL_S: Final = 0.25
#: Seconds without a renewal after which a reservation ends, and seconds between renewals.
TTL_S: Final = 5.0
_RENEWAL_S: Final = 1.0
#: Seconds between checks whether the slots of a reservation are free.
_SLOTS_POLL_S: Final = 0.1


class QueueBackend:
    """A `JobBackend` for a queue.

    Args:
        board: the queue.
        queue: name of the queue.
    """

    def __init__(self, board: QueueBoard, queue: str = "main") -> None:
        self._board, self._queue = board, queue

    def submit(self, spec: QueuedJobSpec) -> list[str]:
        number = self._board.submit(spec.name, spec.to_json())
        if number is None:
            raise not_ended(spec.name)
        lines = [f"job {spec.name} is number {number} of queue {self._queue}"]
        if note := spec.fleet_note():
            lines.append(note)
        runner = self._board.runner()
        if runner is None:
            lines.append(NO_FLEET)
        elif spec.min_nodes > (slots := int(runner.facts.get("slots", 0))):
            lines.append(
                f"the job needs {spec.min_nodes} slots, the fleet has {slots}: it waits for more"
            )
        return lines

    def listing(self) -> Listing:
        jobs, runner = self._board.jobs(), self._board.runner()
        reservations, head = self._board.reservations(), fleet_line(runner)
        if runner is not None:
            kept_slots = runner.facts.get("kept", {})
            for one in reservations:
                count = len(kept_slots.get(one.name, ()))
                head += f"; reservation {one.name} has {count} of {one.slots} slots"
        return Listing(
            jobs,
            self._board.time_ms(),
            head,
            f"queue {self._queue}",
            {
                "fleet": None if runner is None else {"runner": runner.runner_id, **runner.facts},
                "reservations": [{"name": one.name, "slots": one.slots} for one in reservations],
            },
            frozenset(job.name for job in jobs if is_lost(job.progress, runner)),
            "" if runner is not None else ", as soon as a fleet runs: there is none now",
        )

    def scale(self, job: QueuedJob, nodes: int | None) -> bool:
        return self._board.set_desired_state(job.name, DesiredJobState(nodes), job.number)

    def stop(self, job: QueuedJob) -> bool:
        return self._board.set_desired_state(job.name, replace(job.desired, stop=True), job.number)

    def final_progress(self, job: QueuedJob) -> JobProgress | None:
        found = next((one for one in self._board.jobs() if one.name == job.name), None)
        if found is None or found.number != job.number:
            return JobProgress("stopped", reason="the queue does not have it any more")
        return found.progress if found.progress.ended else None

    def log_lines(self, job: QueuedJob, follow: bool) -> Iterator[str]:
        last_id = ""

        def read_new() -> list[str]:
            nonlocal last_id
            # Redis may keep a few more than PIECES_KEPT.
            pieces = self._board.read_log(job.name, last_id, 2 * PIECES_KEPT)
            if pieces:
                last_id = pieces[-1].entry_id
            return [str(line) for piece in pieces for line in piece.body.get("lines", ())]

        return follow_log(self, job, read_new, lambda: _LOG_POLL_S, follow)

    def events(self, last: int) -> list[TimelineEntry]:
        return self._board.events(count=EVENTS_KEPT)[-last:]  # for 0, [-0:] returns all

    def close(self) -> None:
        self._board.close()


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
        for_s: duration in seconds, including the wait for the slots; None: until `stop`.
        stop: ends the reservation.
        say: called with a line of text when the slots are free, and when the reservation ends.

    Raises:
        UsageError: the name is taken, no fleet runs, or the fleet has fewer slots.
        EdlError: Redis does not answer at the start. Later errors are logged.
    """
    _check_reservation(board, name, slots)
    start_s = renewed_s = time.monotonic()
    board.reserve(name, slots, TTL_S)
    is_free, end_text = False, "given back"
    try:
        while for_s is None or time.monotonic() - start_s < for_s:
            if stop.wait(_RENEWAL_S / 2 if is_free else _SLOTS_POLL_S):
                break
            try:
                if time.monotonic() - renewed_s > _RENEWAL_S:
                    board.reserve(name, slots, TTL_S)
                    renewed_s = time.monotonic()
                if not is_free and (text := _describe_free_slots(board, name, slots)):
                    is_free = True
                    say(f"{text} free after {time.monotonic() - start_s:.1f} s")
            except EdlError as error:
                log.warning("the reservation is not renewed: %s", error)
    finally:
        try:
            board.unreserve(name)
        except EdlError as error:
            end_text = f"given back within {TTL_S:g} s"
            log.warning("the reservation ends in %g s, as it cannot be deleted: %s", TTL_S, error)
    say(end_text if is_free else f"cancelled before {slots} slots were free")


def _check_reservation(board: QueueBoard, name: str, slots: int) -> None:
    if any(one.name == name for one in board.reservations()):
        raise UsageError(f"there is a reservation {name!r} already: take another --name")
    runner = board.runner()
    if runner is None:
        raise UsageError("no fleet runs jobs now, so there are no slots to reserve")
    if slots > (fleet_slots := int(runner.facts.get("slots", 0))):
        raise UsageError(f"the fleet has {fleet_slots} slots: {slots} cannot be reserved")


def _describe_free_slots(board: QueueBoard, name: str, slots: int) -> str:
    """Describe the slots once the fleet keeps all of them free; return "" until then."""
    runner = board.runner()
    if runner is None:
        return ""
    kept_slots = runner.facts.get("kept", {}).get(name, [])
    if len(kept_slots) < slots:
        return ""
    cores = runner.facts.get("cores", [])
    parts = []
    for slot in kept_slots:
        numbers = ", ".join(map(str, cores[slot])) if slot < len(cores) else ""
        parts.append(f"slot {slot}" + (f" (cores {numbers})" if numbers else ""))
    return ", ".join(parts) + (" is" if len(parts) == 1 else " are")

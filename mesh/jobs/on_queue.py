"""What `edl job` asks, of the queue in Redis that an `edl fleet jobs` works off."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from ...coordinator.ops.queue_view import NOBODY, is_lost
from ...coordinator.queue import Entry, Progress, QueueBoard, QueuedJob, Wish, open_queue
from ...coordinator.queue.records import EVENTS_KEPT
from ...errors import UsageError
from . import following
from .backend import Listing, not_ended
from .spec import JobSpec
from .views import fleet_line

if TYPE_CHECKING:
    from .backend import Where


class QueueJobs:
    """See `JobBackend`.

    Args:
        board: the queue.
        queue: its name.
    """

    def __init__(self, board: QueueBoard, queue: str = "main") -> None:
        self._board, self._queue = board, queue

    @classmethod
    def open(cls, where: Where) -> Self:
        """The queue that is meant. Raises UsageError where its URL or its name is none."""
        return cls(open_queue(where.coordinator, where.queue), where.queue)

    def submit(self, spec: JobSpec) -> list[str]:
        number = self._board.submit(spec.name, spec.for_a_fleet().to_json())
        if number is None:
            raise not_ended(spec.name)
        said = [f"job {spec.name} is number {number} of queue {self._queue}"]
        if note := spec.fleet_note():
            said.append(note)
        runner = self._board.runner()
        if runner is None:
            said.append(NOBODY)
        elif spec.min_nodes > (slots := int(runner.facts.get("slots", 0))):
            said.append(
                f"it needs {spec.min_nodes} slots, and the fleet has {slots}: it waits for more"
            )
        return said

    def listing(self) -> Listing:
        jobs, runner = self._board.jobs(), self._board.runner()
        reservations = self._board.reservations()
        return Listing(
            jobs,
            self._board.time_ms(),
            fleet_line(runner, reservations),
            f"no job in queue {self._queue}: 'edl job submit JOB.yaml' adds one",
            {
                "fleet": None if runner is None else {"runner": runner.runner_id, **runner.facts},
                "reservations": [{"name": one.name, "slots": one.slots} for one in reservations],
            },
            frozenset(job.name for job in jobs if is_lost(job.progress, runner)),
        )

    def find(self, name: str) -> QueuedJob:
        found = next((one for one in self._board.jobs() if one.name == name), None)
        if found is None:
            raise UsageError(
                f"there is no job {name!r} in queue {self._queue}: 'edl job list' shows all"
            )
        return found

    def scale(self, job: QueuedJob, nodes: int | None) -> bool:
        return self._board.wish(job.name, replace(job.wish, nodes=nodes))

    def stop(self, job: QueuedJob) -> bool:
        return self._board.wish(job.name, Wish(job.wish.nodes, stop=True))

    def stop_note(self) -> str:
        return "" if self._board.runner() is not None else ", once a fleet runs: nobody does"

    def ended(self, job: QueuedJob) -> Progress | None:
        return following.ended(self._board, job)

    def log_lines(self, job: QueuedJob, follow: bool) -> Iterator[str]:
        return following.log_lines(self._board, job, follow)

    def events(self, last: int) -> list[Entry]:
        return self._board.events(count=EVENTS_KEPT)[-last:]

    def close(self) -> None:
        self._board.close()

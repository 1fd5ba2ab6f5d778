"""Starts and removes nodes so that each job has the number that `scheduler.elastic` decides."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ...coordinator.job_queue import Reservation
from ...coordinator.jobs import JobBoard
from ...runtime.errors import ProcessFailed
from ...runtime.supervise import stop_all
from ...scheduler.elastic import decide
from ...scheduler.elastic_values import ElasticJob, ElasticMemory, Pool
from .job_run import JobRun, progress_of
from .slots import JobRunnerConfig, Slots

#: Seconds between reads of the progress of trainings.
_POLL_S: Final = 1.0
#: Name of a dummy job with the nodes of stopping jobs; invalid for real jobs.
_STOPPING: Final = "(stopping)"


class NodeScaler:
    """Starts and removes nodes. Used by the runner's thread only.

    Args:
        config: slots and settings.
        board: board with the reports of trainings.
        on_event: called with a job and a description of an event of one of its nodes.

    Attributes:
        slots: used and reserved slots.
    """

    def __init__(
        self, config: JobRunnerConfig, board: JobBoard, on_event: Callable[[JobRun, str], None]
    ) -> None:
        self.slots = Slots(config.cores)
        self._config, self._board, self._on_event = config, board, on_event
        self._memory = ElasticMemory()
        self._updated_s = float("-inf")

    def reap(self, jobs: Iterable[JobRun], now_s: float) -> None:
        """Record nodes that have ended."""
        for job in jobs:
            for node in job.nodes.poll(now_s):
                self.slots.used.discard(node.slot)
                self._on_event(job, job.ended(node, now_s))

    def update_progress(self, jobs: Iterable[JobRun], now_s: float) -> None:
        """Read the progress of trainings, at most once a second."""
        if now_s - self._updated_s < _POLL_S:
            return
        self._updated_s = now_s
        for job in jobs:
            if job.spec.trains and job.nodes.staying:
                job.training = progress_of(self._board, job.name, len(job.nodes.staying))

    def rescale(
        self, jobs: Sequence[JobRun], reservations: Sequence[Reservation], now_s: float
    ) -> None:
        """Decide the number of nodes of each job, and start or remove nodes."""
        views = {one.name: view for one in jobs if (view := one.view()) is not None}
        self._decide(jobs, views, reservations, now_s)
        for job in jobs:  # first, as starting nodes need slots
            self._shrink(job, job.name in views, now_s)
        if self.slots.lacks_slots(reservations):
            for job in jobs:
                job.nodes.shorten_deadlines(now_s, self._config.yield_s)
        for job in jobs:
            if job.name in views:
                self._grow(job, now_s)

    def close(self, jobs: Sequence[JobRun]) -> None:
        """Send SIGTERM to all nodes, and wait until they end at a safe point or are killed."""
        self.reap(jobs, time.monotonic())
        grace_s = max((one.spec.grace_s for one in jobs if one.nodes.all), default=0.0)
        nodes = [node for job in jobs for node in job.nodes.all]
        for node in nodes:
            node.leaving, node.deadline_s = True, float("inf")
        stop_all([node.process for node in nodes], grace_s)
        self.reap(jobs, time.monotonic())

    def _decide(
        self,
        jobs: Sequence[JobRun],
        views: dict[str, ElasticJob],
        reservations: Sequence[Reservation],
        now_s: float,
    ) -> None:
        slots = len(self._config.cores)
        reserved = min(slots, sum(one.slots for one in reservations))
        stopping = sum(one.nodes.leaving for one in jobs if one.name not in views)
        # Nodes of stopping jobs still have slots: count them for a dummy job that gets no more.
        rest = ElasticJob(_STOPPING, slots + 1, slots + 1, 0, stopping, submitted_s=float("inf"))
        pool = Pool.of_slots(slots, reserved)
        targets, self._memory = decide(
            pool, [*views.values(), rest], self._memory, now_s, self._config.elastic
        )
        by_name = {job.name: job for job in jobs}
        for target in targets:
            if target.job in by_name:
                by_name[target.job].set_target(target)

    def _shrink(self, job: JobRun, continues: bool, now_s: float) -> None:
        staying = len(job.nodes.staying)
        count = staying - job.target if continues else staying
        if count > 0:
            for node in job.nodes.remove(count, now_s, job.spec.grace_s):
                self._on_event(job, f"node {node.number} is told to leave slot {node.slot}")

    def _grow(self, job: JobRun, now_s: float) -> None:
        missing = job.target - len(job.nodes.staying)
        if not job.endings.grows or now_s < job.not_before_s:
            return
        for slot in self.slots.free[: max(0, missing)]:
            cards = self._config.cards
            env = {"CUDA_VISIBLE_DEVICES": cards[slot]} if cards else {}
            cores, url = self._config.cores[slot], self._config.coordinator
            try:
                node = job.nodes.start(slot, cores, url, env)
            except ProcessFailed as error:
                job.failed_to_start(str(error), now_s)
                self._on_event(job, str(error))
                return
            self.slots.used.add(slot)
            self._on_event(job, f"node {node.number} starts in slot {slot}")

"""Slots of this machine. Starts and removes nodes in them, as `scheduler.elastic` decides."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ...coordinator.job_queue import Reservation
from ...coordinator.jobs import JobBoard
from ...runtime.errors import ProcessFailed, UsageError
from ...runtime.supervise import wait_all
from ...scheduler.elastic import decide
from ...scheduler.elastic_values import ElasticConfig, ElasticJob, ElasticMemory, Pool
from .job_run import JobRun, progress_or_unknown


@dataclass(frozen=True, slots=True)
class JobRunnerConfig:
    """Settings of a runner of jobs.

    Raises UsageError if there is no slot, or if there are cards but not one for each slot.

    Attributes:
        runner_id: unique name of the runner.
        host: name of its machine, for display.
        coordinator: Redis URL for the nodes of jobs.
        cores: cores of each slot, one item per slot; an empty item: the slot is not pinned.
        folder: folder for logs, and for checkpoints of jobs without --checkpoint.
        elastic: rules by which jobs share the slots.
        yield_s: seconds after which a leaving node is killed if a reservation needs its slot.
        ttl_s: seconds without a heartbeat after which another runner may take over.
        cards: CUDA_VISIBLE_DEVICES of each slot; empty: nodes see the GPUs that this process sees.
    """

    runner_id: str
    host: str
    coordinator: str
    cores: tuple[tuple[int, ...], ...]
    folder: Path
    elastic: ElasticConfig = field(default_factory=ElasticConfig)
    yield_s: float = 8.0
    ttl_s: float = 5.0
    cards: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.cores:
            raise UsageError("a runner of jobs has at least one slot")
        if self.cards and len(self.cards) != len(self.cores):
            raise UsageError(
                f"{len(self.cards)} cards for {len(self.cores)} slots: name one card for each slot"
            )


def divide_cores(cores: Collection[int], slots: int) -> tuple[tuple[int, ...], ...]:
    """Divide cores equally among slots; slots get no cores of their own if there are too few.

    Args:
        cores: numbers of the cores.
        slots: number of slots.

    Returns:
        Cores of each slot; empty: the slot is not pinned.
    """
    if slots > len(cores):
        return ((),) * slots
    ordered, per_slot = sorted(cores), len(cores) // slots
    return tuple(tuple(ordered[slot * per_slot : (slot + 1) * per_slot]) for slot in range(slots))


@dataclass(slots=True)
class Slots:
    """Slots with nodes, and reserved slots. Only the runner's thread may use this object.

    Attributes:
        cores: cores of each slot.
        used: numbers of slots with a node.
        reserved: numbers of slots that are kept free, by name of the reservation.
        complete: names of the reservations that have all their slots.
    """

    cores: tuple[tuple[int, ...], ...]
    used: set[int] = field(default_factory=set)
    reserved: dict[str, list[int]] = field(default_factory=dict)
    complete: frozenset[str] = frozenset()

    @property
    def reserved_slots(self) -> set[int]:
        """Numbers of reserved slots."""
        return {slot for slots in self.reserved.values() for slot in slots}

    @property
    def free(self) -> list[int]:
        """Numbers of slots that are neither used nor reserved."""
        taken = self.used | self.reserved_slots
        return [slot for slot in range(len(self.cores)) if slot not in taken]

    def reserve(self, reservations: Sequence[Reservation]) -> list[str]:
        """Keep free slots for reservations, the oldest first.

        Args:
            reservations: reservations that have not expired, the oldest first.

        Returns:
            Names of reservations that are complete now and were not before.
        """
        counts = {one.name: one.slots for one in reservations}
        self.reserved = {
            name: self.reserved.get(name, [])[:count] for name, count in counts.items()
        }
        for name, count in counts.items():
            self.reserved[name] += self.free[: count - len(self.reserved[name])]
        complete_before = self.complete
        self.complete = frozenset(
            name for name, count in counts.items() if len(self.reserved[name]) >= count
        )
        return [name for name in counts if name in self.complete - complete_before]

    def lacks_slots(self, reservations: Sequence[Reservation]) -> bool:
        """Whether a reservation still waits for slots that nodes use."""
        count = sum(one.slots for one in reservations)
        return sum(map(len, self.reserved.values())) < min(count, len(self.cores))


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
        """Record nodes that have ended; kill leaving nodes after their deadlines."""
        for job in jobs:
            for node in job.nodes.poll(now_s):
                self.slots.used.discard(node.slot)
                self._on_event(job, job.record_end(node, now_s))

    def update_progress(self, jobs: Iterable[JobRun], now_s: float) -> None:
        """Read the progress of trainings, at most once a second."""
        if now_s - self._updated_s < _POLL_S:
            return
        self._updated_s = now_s
        for job in jobs:
            if job.spec.trains and job.nodes.staying:
                job.training = progress_or_unknown(self._board, job.name, len(job.nodes.staying))

    def rescale(
        self, jobs: Sequence[JobRun], reservations: Sequence[Reservation], now_s: float
    ) -> None:
        """Decide the number of nodes of each job, and start or remove nodes."""
        views = {one.name: view for one in jobs if (view := one.view()) is not None}
        self._decide(jobs, views, reservations, now_s)
        for job in jobs:  # before any job grows, as new nodes need slots
            self._shrink(job, job.name in views, now_s)
        if self.slots.lacks_slots(reservations):
            for job in jobs:
                job.nodes.shorten_deadlines(now_s, self._config.yield_s)
        for job in jobs:
            if job.name in views:
                self._grow(job, now_s)

    def close(self, jobs: Sequence[JobRun]) -> None:
        """Tell all nodes to leave, and wait until they end at a safe point or are killed."""
        now_s = time.monotonic()
        self.reap(jobs, now_s)
        for job in jobs:  # leaving nodes get no second SIGTERM, which would end them at once
            job.nodes.remove(len(job.nodes.staying), now_s, job.spec.grace_s)
        wait_all((node.process, node.deadline_s) for job in jobs for node in job.nodes.all)
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
        leaving = sum(one.nodes.leaving_count for one in jobs if one.name not in views)
        # Nodes of stopping jobs still use slots. They count as leaving nodes of a dummy job, which
        # needs too many slots to get a node.
        stopping_job = ElasticJob(
            _STOPPING, slots + 1, slots + 1, 0, leaving, submitted_s=float("inf")
        )
        pool = Pool.of_slots(slots, reserved)
        targets, self._memory = decide(
            pool, [*views.values(), stopping_job], self._memory, now_s, self._config.elastic
        )
        by_name = {target.job: target for target in targets}
        for job in jobs:
            if (target := by_name.get(job.name)) is not None:
                job.target, job.reason = target.nodes, target.reason

    def _shrink(self, job: JobRun, continues: bool, now_s: float) -> None:
        staying = len(job.nodes.staying)
        count = staying - job.target if continues else staying
        if count > 0:
            for node in job.nodes.remove(count, now_s, job.spec.grace_s):
                self._on_event(job, f"node {node.number} is told to leave slot {node.slot}")

    def _grow(self, job: JobRun, now_s: float) -> None:
        missing = job.target - len(job.nodes.staying)
        if not job.endings.may_start_nodes or now_s < job.not_before_s:
            return
        for slot in self.slots.free[: max(0, missing)]:
            cards = self._config.cards
            env = {"CUDA_VISIBLE_DEVICES": cards[slot]} if cards else {}
            cores, url = self._config.cores[slot], self._config.coordinator
            try:
                node = job.nodes.start(slot, cores, url, env)
            except ProcessFailed as error:
                job.record_failed_start(str(error), now_s)
                self._on_event(job, str(error))
                return
            self.slots.used.add(slot)
            self._on_event(job, f"node {node.number} starts in slot {slot}")

"""The ledger's tables and the steps that keep them in agreement.

Redundant for speed: `open`, `queue`, `refused` and the counters could be derived from `batches` and
`teachers`. Each step below changes both sides at once; `ledger_check` derives and compares.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappush

#: How much of a teacher's speed estimate the newest answer replaces.
SPEED_GAIN = 0.25


class Stage(Enum):
    """Where a batch is in its life; it moves down, or from IN_FLIGHT back to QUEUED."""

    QUEUED = "queued"
    IN_FLIGHT = "in flight"
    LABELLED = "labelled"  # waits for an earlier batch
    POISONED = "poisoned"  # waits for an earlier batch
    DELIVERED = "delivered"  # until the student has taken it
    FORGOTTEN = "forgotten"  # taken, poisoned, reset or replaced; only requests still know it


UNSETTLED = (Stage.QUEUED, Stage.IN_FLIGHT)


@dataclass(slots=True, eq=False)
class Batch:
    """One batch, from `Queued` to `Taken`."""

    id: int
    input_bytes: int
    stage: Stage = Stage.QUEUED
    attempts: int = 0
    #: Teachers that have it in flight now: several once it is hedged, and the first answer counts.
    holders: set[str] = field(default_factory=set)
    #: Teacher -> what it said. None, not an empty dict: hardly any batch is ever refused.
    refusals: dict[str, str] | None = None
    label_bytes: int = 0  # from LABELLED on

    @property
    def nbytes(self) -> int:
        """Bytes of all that is held of it."""
        return self.input_bytes + self.label_bytes

    def may_go_to(self, teacher: str) -> bool:
        """Whether `teacher` has not refused it."""
        return self.refusals is None or teacher not in self.refusals


@dataclass(slots=True, eq=False)
class Teacher:
    """One teacher, from `TeacherJoined` until it is lost, or revoked and done."""

    name: str
    order: int  # of joining: breaks ties
    window: int
    seconds_per_batch: float | None
    revoked: bool = False
    resting: bool = False  # failed, and not resumed yet
    in_flight: dict[int, Batch] = field(default_factory=dict)  # in the order of sending

    @property
    def usable(self) -> bool:
        """Whether new batches may go there at all."""
        return not (self.revoked or self.resting)

    def may_have(self, batch: Batch) -> bool:
        """Whether `batch` may be sent there, once there is room.

        It may still be at work on it for a model that was exchanged: two requests of one name would
        be taken for each other.
        """
        return batch.may_go_to(self.name) and batch.id not in self.in_flight

    @property
    def free(self) -> int:
        """Requests that may still be sent there now."""
        return max(self.window - len(self.in_flight), 0) if self.usable else 0

    def learn(self, seconds: float) -> None:
        """Follow the device time of its answers; what is not positive says nothing."""
        if self.seconds_per_batch is None:
            self.seconds_per_batch = seconds if seconds > 0 else None
        elif seconds > 0:
            self.seconds_per_batch += SPEED_GAIN * (seconds - self.seconds_per_batch)


@dataclass(slots=True)
class Tables:
    """All that a ledger knows."""

    teachers: dict[str, Teacher] = field(default_factory=dict)
    open: dict[str, Teacher] = field(default_factory=dict)  # those with `free` > 0
    batches: dict[int, Batch] = field(default_factory=dict)  # all that are not forgotten
    line: deque[Batch] = field(default_factory=deque)  # not delivered yet, by id
    queue: list[int] = field(default_factory=list)  # heap: a lower id is nearer to the front
    refused: dict[int, Batch] = field(default_factory=dict)  # unsettled, and refused by someone
    unlabelled: int = 0
    deliverable: int = 0
    volume_bytes: int = 0
    last_id: int = -1

    def admit(self, batch_id: int, nbytes: int) -> Batch:
        """A new batch, listed but not placed yet."""
        if batch_id <= self.last_id:
            raise ValueError(f"batch {batch_id} comes after batch {self.last_id}: ids must grow")
        self.last_id = batch_id
        batch = self.batches[batch_id] = Batch(batch_id, nbytes)
        return batch

    def enqueue(self, batch: Batch) -> None:
        """Put an unsettled batch in the queue, where its id belongs."""
        batch.stage = Stage.QUEUED
        heappush(self.queue, batch.id)

    def give_up(self, batch: Batch, teacher: Teacher) -> None:
        """`teacher` will not answer `batch`: unless another one may, back to the front with it."""
        batch.holders.discard(teacher.name)
        if batch.stage is Stage.IN_FLIGHT and not batch.holders:
            self.enqueue(batch)

    def settle(self, batch: Batch, stage: Stage) -> None:
        """The batch is decided: LABELLED, or POISONED and never to be."""
        if batch.stage is Stage.QUEUED:  # only poison comes this way, and hardly ever
            self.queue.remove(batch.id)
            heapify(self.queue)
        batch.stage = stage
        self.unlabelled -= 1
        if batch.refusals is not None:
            self.refused.pop(batch.id, None)

    def deliver(self, batch: Batch) -> None:
        """The batch is the student's to take."""
        batch.stage = Stage.DELIVERED
        self.deliverable += 1

    def start_over(self) -> None:
        """Queue every batch in line as if it had just come; the old requests run out unheard."""
        old, self.line = self.line, deque()
        self.queue.clear()
        self.refused.clear()
        self.unlabelled = len(old)
        for batch in old:
            if batch.stage is Stage.LABELLED:
                self.volume_bytes -= batch.nbytes
            batch.stage = Stage.FORGOTTEN
            again = self.batches[batch.id] = Batch(batch.id, batch.input_bytes)
            self.line.append(again)
            self.enqueue(again)

    def forget(self, batch: Batch) -> None:
        """The batch is over."""
        batch.stage = Stage.FORGOTTEN
        del self.batches[batch.id]

    def refresh(self, teacher: Teacher) -> None:
        """List the teacher where it belongs, after any change to it; one that is done goes."""
        if teacher.free:
            self.open[teacher.name] = teacher
            return
        self.open.pop(teacher.name, None)
        if teacher.revoked and not teacher.in_flight:
            self.teachers.pop(teacher.name, None)

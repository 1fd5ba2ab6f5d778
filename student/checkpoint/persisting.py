"""A thread of the supervisor that writes snapshots to disk while the training continues.

It always writes the newest snapshot, and skips older ones. If a write fails, it logs the error once
and retries. The training continues: the snapshot stays in memory, and the previous checkpoint stays
on disk.

A written checkpoint that cannot join the history, because the job board does not answer, stays on
disk and waits. Newer checkpoints are written in addition, at growing intervals
(`scheduler.students.saving.due_without_board`).
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Final

from ...runtime.errors import EdlError, GenerationSuperseded
from ...scheduler.backoff import ceiling_s
from ...scheduler.students.saving import due_without_board
from .checkpoint import Checkpoint
from .contents import Contents
from .repository import HistoryFence, Repository
from .snapshot import Header, SnapshotOwner

log = logging.getLogger(__name__)

#: Longest wait of an ending supervisor for a write, in seconds.
LAST_WRITE_S: Final = 60.0
#: Longest pause before a failed save is retried, in seconds.
_LONGEST_RETRY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _UnjoinedCheckpoint:
    """A checkpoint on disk that has not joined the history yet.

    Attributes:
        sequence: sequence number of its snapshot.
        checkpoint: the newest such checkpoint.
        since_s: when the write of the first unjoined checkpoint began, by the monotonic clock.
        written_s: when `checkpoint` was written.
    """

    sequence: int
    checkpoint: Checkpoint
    since_s: float
    written_s: float


class Persister:
    """Writes snapshots to disk; see the module. Any thread may call its methods.

    Args:
        owner: owner of the snapshots; closed when the thread ends.
        repository: from now on used only by the thread.
        retry_base_s: seconds before the first retry; later pauses double, up to a minute.

    Attributes:
        problem: why the last save of this generation failed, in one line; empty: it did not fail. A
            checkpoint that cannot join the history is a failure, too.
        newest: the last checkpoint of this object that joined the history; None: none yet.
        superseded: since the last `follow`, a save was refused because of a newer generation.
    """

    def __init__(
        self, owner: SnapshotOwner, repository: Repository, retry_base_s: float = 1.0
    ) -> None:
        self._owner, self._repository = owner, repository
        self._retry_base_s = retry_base_s
        self.problem = ""
        self.newest: Checkpoint | None = None
        self.superseded = False
        self._sequence = 0  # snapshots up to this sequence number are saved or void
        self._fence: HistoryFence | None = None
        self._name = ""  # name of the folder of the next save; empty: a new one
        self._unjoined: _UnjoinedCheckpoint | None = None
        self._failures = 0
        self._logged_failure: object = None
        self._changed = threading.Condition()
        self._requested = self._attempted = 0  # counts of `wake` calls, and of those acted on
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._thread.start()

    @property
    def on_disk(self) -> bool:
        """Whether nothing remains to be written.

        True without a snapshot. With one, True if the newest is on disk or void, and the thread has
        acted on every call of `wake`. A checkpoint counts as on disk before it joins the history.
        """
        header = self._owner.newest_header()
        with self._changed:
            written = max(self._sequence, self._unjoined.sequence if self._unjoined else 0)
            idle = self._requested == self._attempted
            return header is None or (header.sequence <= written and idle)

    def follow(self, fence: HistoryFence, name: str = "") -> None:
        """Follow a new generation: save snapshots from now on with its fence.

        Existing snapshots become void, except the newest one if the generation starts from it.

        Args:
            fence: fence of the generation.
            name: name of the folder for the newest existing snapshot, from which the generation
                starts; empty: that snapshot is void, too. Later snapshots get new names.
        """
        header = self._owner.newest_header()
        with self._changed:
            self._fence, self._unjoined, self._name = fence, None, name
            self.superseded, self.problem = False, ""
            if header is not None:
                self._sequence = header.sequence - 1 if name else header.sequence

    def wake(self) -> None:
        """Request a write of the newest snapshot; does not block."""
        with self._changed:
            self._requested += 1
            self._changed.notify_all()

    def stop(self, timeout_s: float) -> None:
        """Stop the thread; wait up to `timeout_s` for a write. A longer write continues."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("a checkpoint is still being written to %s", self._repository.url)

    def _run(self) -> None:
        due_s: float | None = None  # when to retry a failed save
        while True:
            with self._changed:
                while self._requested == self._attempted and not self._ending:
                    left_s = None if due_s is None else due_s - time.monotonic()
                    if left_s is not None and left_s <= 0:
                        break
                    self._changed.wait(left_s)
                if self._ending:
                    self._owner.close()
                    return
                requested = self._requested
            due_s = self._attempt()
            with self._changed:
                self._attempted = requested
                self._changed.notify_all()

    def _attempt(self) -> float | None:
        """Save the newest snapshot; return when to retry, by the monotonic clock.

        None: not before the next call of `wake`.
        """
        step = -1
        with self._changed:
            fence = self._fence
        try:
            with self._owner.newest() as found:
                if found is None or found[0].sequence <= self._sequence:
                    return None
                header, contents = found
                step = header.step
                sequence = self._save(header, contents, fence)
        except GenerationSuperseded as error:
            log.info("the save of step %d is void: %s", step, error)
            self.problem = ""
            with self._changed:
                self.superseded = fence is self._fence
            return None
        except Exception as error:
            return self._record_failure(step, error, fence)
        if sequence < header.sequence:  # an older snapshot has joined: save the newest one now
            return 0.0
        if self._failures and self.newest is not None:
            log.info("checkpoints are written again: %s", self.newest.location)
        self._failures, self.problem, self._logged_failure = 0, "", None
        return None

    def _save(self, header: Header, contents: Contents, fence: HistoryFence | None) -> int:
        """Write the snapshot and join the history; return the sequence of the snapshot that joined.

        An older snapshot joins first, if its checkpoint could not join before.
        """
        now_s = time.monotonic()
        with self._changed:
            self._check_fence_is_current(fence)
            unjoined, name = self._unjoined, self._name
        if unjoined is None or (
            unjoined.sequence != header.sequence
            and due_without_board(unjoined.written_s, unjoined.since_s, now_s)
        ):
            written = self._repository.write(contents, fence, name)
            since_s = now_s if unjoined is None else unjoined.since_s
            unjoined = _UnjoinedCheckpoint(header.sequence, written, since_s, time.monotonic())
            with self._changed:
                self._check_fence_is_current(fence)
                self._unjoined = unjoined
        joined = self._repository.join(unjoined.checkpoint, fence)
        with self._changed:
            if self._unjoined is unjoined:
                self._sequence, self._unjoined = max(self._sequence, unjoined.sequence), None
                self._name = ""
        self.newest = joined or self.newest
        return unjoined.sequence

    def _check_fence_is_current(self, fence: HistoryFence | None) -> None:
        """Raise GenerationSuperseded if `follow` has set another fence; requires the lock."""
        if fence is not self._fence:
            raise GenerationSuperseded("another generation has begun")

    def _record_failure(self, step: int, error: Exception, fence: HistoryFence | None) -> float:
        """Record and log a failed save; return when to retry, by the monotonic clock."""
        problem = str(error) if isinstance(error, EdlError) else f"{type(error).__name__}: {error}"
        with self._changed:
            if fence is not self._fence:  # `follow` has made the snapshot void
                return 0.0
            self.problem = problem
        self._failures += 1
        wait_s = ceiling_s(self._failures - 1, self._retry_base_s, _LONGEST_RETRY_S)
        failure = type(error), getattr(error, "full", None)
        if failure != self._logged_failure:  # log an error only once
            previous = "" if self.newest is None else f"; {self.newest.location} stays"
            log.error(
                "%s. The training goes on, and the save is retried%s",
                *(problem, previous),
                exc_info=None if isinstance(error, EdlError) else error,
            )
        self._logged_failure = failure
        log.debug("the save of step %d is retried in %g s", step, wait_s)
        return time.monotonic() + wait_s

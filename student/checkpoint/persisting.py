"""From memory to the disk, while the training goes on: a thread of the supervisor.

It writes the newest snapshot; one that is overtaken by a newer before its turn is never written.
What cannot be written now is said once, tried again, and costs the training nothing: the snapshot
stays in memory, the checkpoint before stays where it is.

What was written and cannot join the history, as the job board is away, waits on the disk. Newer
ones are written beside it now and then (`scheduler.students.saving.due_beside`).
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Final

from ...runtime.errors import EdlError, GenerationSuperseded
from ...scheduler.backoff import ceiling_s
from ...scheduler.students.saving import due_beside
from .checkpoint import Checkpoint
from .contents import Contents
from .repository import Fence, Repository
from .snapshot import Header, SnapshotOwner

log = logging.getLogger(__name__)

#: How long a supervisor that ends waits for the last snapshot to be written.
LAST_S: Final = 60.0
#: Most seconds before a save is tried again that has failed.
_LONGEST_RETRY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A checkpoint on the disk that has not joined the history yet.

    Attributes:
        sequence: of its snapshot.
        checkpoint: the newest one that waits.
        since_s: when the first one was written that waits, by the monotonic clock.
        written_s: when this one was.
    """

    sequence: int
    checkpoint: Checkpoint
    since_s: float
    written_s: float


class Persister:
    """See the module. `start` and `stop` once each, the rest from any thread.

    Args:
        owner: of the snapshots; it outlives this.
        repository: used by this thread alone from now on; others make one of their own.
        retry_base_s: seconds before the first retry; they double up to a minute.

    Attributes:
        trouble: why the newest snapshot is not on the disk, in one line; empty: nothing is wrong.
        newest: the checkpoint that was saved last by this; None: none yet.
        superseded: a save was refused, as another generation has begun, since the last `follow`.
    """

    def __init__(
        self, owner: SnapshotOwner, repository: Repository, retry_base_s: float = 1.0
    ) -> None:
        self._owner, self._repository = owner, repository
        self._retry_base_s = retry_base_s
        self.trouble = ""
        self.newest: Checkpoint | None = None
        self.superseded = False
        self._sequence = 0  # of the snapshot that was saved last, or is void
        self._fence: Fence | None = None
        self._name = ""  # of the folder for the next snapshot; empty: a new one
        self._waiting: _Waiting | None = None
        self._failures = 0
        self._told: object = None
        self._changed = threading.Condition()
        self._asked = self._answered = 0  # wishes, and how many of them an attempt has followed
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def start(self) -> None:
        """Begin to write what there is to write."""
        self._thread.start()

    @property
    def on_disk(self) -> bool:
        """Whether the newest snapshot is on the disk, also where it cannot join the history yet.

        False until it is known whether it can.
        """
        header = self._owner.newest_header()
        with self._changed:
            written = max(self._sequence, self._waiting.sequence if self._waiting else 0)
            return header is None or (header.sequence <= written and self._asked == self._answered)

    def follow(self, fence: Fence, name: str = "") -> None:
        """A generation begins: snapshots from now on are saved by its fence.

        Those from before are void, unless the generation begins with the newest one.

        Args:
            fence: of the generation.
            name: under which the newest snapshot is to be written; empty: it is not.
        """
        header = self._owner.newest_header()
        with self._changed:
            self._fence, self._waiting, self._name = fence, None, name
            self.superseded = False
            if header is not None:
                self._sequence = header.sequence - bool(name)

    def wake(self) -> None:
        """There is a new snapshot; does not wait for anything."""
        with self._changed:
            self._asked += 1
            self._changed.notify_all()

    def persist_now(self, timeout_s: float = LAST_S) -> Checkpoint | None:
        """Have the newest snapshot written, as when the rank that made it has died.

        Returns:
            The checkpoint that holds it, also where it was written before. None: there is no
            snapshot, it could not be written (`trouble` says why), or it takes longer than
            `timeout_s`: then it is written nevertheless.
        """
        deadline = time.monotonic() + timeout_s
        header = self._owner.newest_header()
        if header is None:
            return None
        with self._changed:
            self._asked += 1
            wish = self._asked
            self._changed.notify_all()
            while self._answered < wish and self._thread.is_alive():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    log.warning(
                        "the snapshot of step %d is not written to %s after %g s; it goes on",
                        *(header.step, self._repository.url, timeout_s),
                    )
                    return None
                self._changed.wait(left_s)
            return self.newest if self._sequence >= header.sequence else None

    def stop(self, timeout_s: float = LAST_S, last: bool = True) -> bool:
        """End the thread.

        Args:
            timeout_s: so long is waited.
            last: write the newest snapshot before, once more if that failed; False: it is void.

        Returns:
            Whether it has ended; else it still writes, and the owner's memory has to stay open.
        """
        if not self._thread.is_alive():
            return True
        began = time.monotonic()
        if last:
            self.persist_now(timeout_s)
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._thread.join(max(0.0, timeout_s - (time.monotonic() - began)))
        if self._thread.is_alive():
            log.warning("a checkpoint is still being written to %s", self._repository.url)
            return False
        return True

    def _run(self) -> None:
        due_s: float | None = None  # when to try again what has failed
        while True:
            with self._changed:
                while self._asked == self._answered and not self._ending:
                    left_s = None if due_s is None else due_s - time.monotonic()
                    if left_s is not None and left_s <= 0:
                        break
                    self._changed.wait(left_s)
                if self._ending:
                    return
                wish = self._asked
            due_s = self._attempt()
            with self._changed:
                self._answered = wish
                self._changed.notify_all()

    def _attempt(self) -> float | None:
        """Write what there is to write; when to try again, on the clock of this machine."""
        step, fence = -1, self._fence
        try:
            with self._owner.newest() as found:
                if found is None or found[0].sequence <= self._sequence:
                    return None
                header, contents = found
                step = header.step
                sequence = self._save(header, contents)
        except GenerationSuperseded as error:
            log.info("the save of step %d is void: %s", step, error)
            self.trouble = ""
            with self._changed:
                self.superseded = fence is self._fence
            return None
        except Exception as error:
            return self._failed(step, error)
        if sequence < header.sequence:  # an older one could join now; this one is next
            return 0.0
        if self._failures and self.newest is not None:
            log.info("checkpoints are written again: %s", self.newest.location)
        self._failures, self.trouble, self._told = 0, "", None
        return None

    def _save(self, header: Header, contents: Contents) -> int:
        """Write the snapshot, have it join the history; the sequence of the one that joined."""
        now_s = time.monotonic()
        with self._changed:
            fence, waiting, name = self._fence, self._waiting, self._name
        if waiting is None or (
            waiting.sequence != header.sequence
            and due_beside(waiting.written_s, waiting.since_s, now_s)
        ):
            written = self._repository.write(contents, fence, name)
            since_s = now_s if waiting is None else waiting.since_s
            waiting = _Waiting(header.sequence, written, since_s, time.monotonic())
            with self._changed:
                if fence is not self._fence:
                    raise GenerationSuperseded("another generation has begun")
                self._waiting = waiting
        joined = self._repository.join(waiting.checkpoint, fence)
        with self._changed:
            if self._waiting is waiting:
                self._sequence, self._waiting = max(self._sequence, waiting.sequence), None
                self._name = ""
        self.newest = joined or self.newest
        return waiting.sequence

    def _failed(self, step: int, error: Exception) -> float:
        self._failures += 1
        wait_s = ceiling_s(self._failures - 1, self._retry_base_s, _LONGEST_RETRY_S)
        trouble = str(error) if isinstance(error, EdlError) else f"{type(error).__name__}: {error}"
        kind = type(error), getattr(error, "full", None)
        if kind != self._told:  # not once for each retry
            before = "none is there yet" if self.newest is None else f"{self.newest.location} stays"
            log.error(
                "%s. The training goes on and it is tried again; %s",
                *(trouble, before),
                exc_info=None if isinstance(error, EdlError) else error,
            )
        self.trouble, self._told = trouble, kind
        log.debug("step %d is tried again in %g s", step, wait_s)
        return time.monotonic() + wait_s

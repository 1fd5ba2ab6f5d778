"""What a node keeps of its ranks' training: snapshots in its memory, checkpoints on the disk.

Ranks copy into memory that belongs to the supervisor and outlives them; a thread writes the newest
copy, so that training waits for no disk. Of a world one node writes, the first; another one does
where the first is gone and the next generation begins with what the other one has.
"""

from __future__ import annotations

import shutil
import tempfile
from typing import Final

from ...coordinator.jobs import JobBoard
from ...errors import CheckpointUnavailable
from ...scheduler.students.saving import CheckpointEntry
from ...scheduler.students.world import Fingerprint
from ..checkpoint import Checkpoint, Repository, SnapshotOwner
from ..checkpoint.manifest import Provenance
from ..checkpoint.persisting import LAST_S, Persister
from .facts import Generation
from .fencing import BoardFence
from .judging import Judge

#: A write that is void is not waited for longer: others wait for this node to begin.
_VOID_S: Final = 2.0
_FOLDER: Final = "edl-student-"


class Keeping:
    """See the module.

    Args:
        url: folder or fsspec URL of the checkpoints; None: a temporary folder, gone at the end.
        keep: checkpoints that a save leaves.
        board: that keeps the history of the job.
        job: its name.
        alone: no other node has this board, so the place is locked.

    Raises:
        UsageError: the URL cannot be opened by what is installed, or another training that is
            alone saves there.
    """

    def __init__(
        self, url: str | None, keep: int, board: JobBoard, job: str, alone: bool = False
    ) -> None:
        self._own = None if url else tempfile.mkdtemp(prefix=_FOLDER)
        self._url, self._keep = url or str(self._own), keep
        self._board, self._job = board, job
        # One for each thread: the supervisor's, the judge's; the persister has a third.
        self._finding = Repository(self._url, keep)
        self._lock = self._finding.lock() if alone else None
        self.judge = Judge(Repository(self._url, keep))
        self._provenance = Provenance()
        self._generation = 0
        self._open()

    def _open(self) -> None:
        self._owner = SnapshotOwner()
        self._saving = Repository(self._url, self._keep)
        self._saving.provenance = self._provenance
        self._persister = Persister(self._owner, self._saving)
        self._persister.start()

    @property
    def snapshot(self) -> int:
        """Step of the newest snapshot in memory; -1: there is none."""
        step = self._owner.newest_step()
        return -1 if step is None else step

    @property
    def saved(self) -> int:
        """Step of the newest checkpoint that this node has written; 0: none."""
        newest = self._persister.newest
        return 0 if newest is None else newest.step

    @property
    def problem(self) -> str:
        """Why the last snapshot is not on the disk; empty: it is, or is on its way."""
        return self._persister.trouble

    @property
    def keys(self) -> tuple[str, ...]:
        """Of the memory, for the ranks."""
        return tuple(self._owner.keys)

    def begin(self, generation: Generation, writes: bool) -> None:
        """A generation begins. Snapshots that are not of what it begins with are void.

        Args:
            generation: the new one.
            writes: this node has what it begins with in memory, and has to write it.
        """
        self._generation, world = generation.number, generation.world
        if self.snapshot > world.restored:
            self._end_writing(_VOID_S)
            self._open()
        before = generation.history.newest if writes else world.origin
        fence = BoardFence(self._board, self._job, generation.number, before.name if before else "")
        self._persister.follow(fence, world.origin.name if writes and world.origin else "")
        if writes:
            self._persister.wake()

    def trains(self, checkpoint: Checkpoint | None, fingerprint: Fingerprint) -> None:
        """Ranks train with this fingerprint from now on, and go on from `checkpoint`, if any."""
        before, step = Provenance(), 0
        if checkpoint is not None:
            before, step = checkpoint.provenance, checkpoint.step
        self._provenance = self._saving.provenance = before.continued(step, fingerprint)

    def newest_in_words(self) -> str:
        """Which checkpoint the disk has, for the message that another one is not there."""
        try:
            whole = next((one for one in self._finding.list() if one.valid), None)
        except CheckpointUnavailable as error:
            return f"not known: {error}"
        return "none" if whole is None else f"that of step {whole.step}"

    def find(self, origin: CheckpointEntry) -> Checkpoint | None:
        """The checkpoint that a generation begins with; None: it is not on the disk (yet).

        One that could not join the history before has joined it now: that is noted in its folder.

        Raises:
            CheckpointUnavailable: the place cannot be read now.
        """
        found = self._finding.find(origin.name)
        if found is None or found.problem:
            return None
        if found.digest == origin.digest:
            self._finding.mark(origin)
            return found
        return found if found.sequence else None

    def has(self, step: int) -> bool:
        """Whether the present generation has saved this step.

        Raises:
            CheckpointUnavailable: the place cannot be read now.
        """
        return any(
            one.step == step and one.valid and one.generation == self._generation
            for one in self._finding.list()
        )

    def write(self) -> None:
        """Have the newest snapshot written soon, unless it is on the disk."""
        self._persister.wake()

    def written(self) -> bool:
        """Whether the newest snapshot that counts is on the disk."""
        return self._persister.on_disk

    def close(self) -> None:
        """End the writing, and give memory and temporary folder back."""
        self._end_writing(LAST_S)
        if self._lock is not None:
            self._lock.close()
        if self._own:
            shutil.rmtree(self._own, ignore_errors=True)

    def _end_writing(self, timeout_s: float) -> None:
        """Give the memory back; a disk that hangs has it until it, or this process, ends."""
        if self._persister.stop(timeout_s, last=False):
            self._owner.close()

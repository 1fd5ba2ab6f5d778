"""The checkpoints of a node: snapshots in memory, and what is written of them.

Ranks copy into memory that belongs to the supervisor and outlives them. A thread of the
`CheckpointManager` writes the newest copy, so that training waits for no disk. What is written
joins the history of the job through `HistoryFence`. Of a world one node writes, the first; another
one does where the first is gone and the next generation begins with what the other one has.

`CheckpointVerifier` finds the newest checkpoint of which every byte is right. To read it all may
take longer than a node's lease lives, so a thread of its own does. It reads anew for each
generation, as the disk may have spoiled what was whole before.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...coordinator.jobs import Generation, JobBoard
from ...runtime.errors import CheckpointUnavailable, GenerationSuperseded, UsageError
from ...scheduler.students.fingerprint import Fingerprint
from ...scheduler.students.saving import CheckpointEntry, CheckpointHistory, expected_digest
from ..checkpoint import Checkpoint, Repository, SnapshotOwner
from ..checkpoint.checkpoint import Provenance
from ..checkpoint.persisting import LAST_S, Persister


class HistoryFence:
    """See `student.checkpoint.repository.Fence`.

    Args:
        board: that keeps the history.
        job: its name there.
        generation: whose saves these are.
        after: name of the checkpoint that the first of them continues; empty: there is none.
    """

    def __init__(self, board: JobBoard, job: str, generation: int, after: str) -> None:
        self._board, self._job = board, job
        self.generation, self.after = generation, after

    def history(self) -> CheckpointHistory:
        record = self._board.generation(self._job)
        if record is None or record.number != self.generation:
            raise GenerationSuperseded(f"generation {self.generation} of {self._job} is over")
        return CheckpointHistory.from_json(record.history)

    def replace(self, known: CheckpointHistory, history: CheckpointHistory) -> bool:
        return self._board.replace_history(
            self._job, self.generation, known.to_json(), history.to_json()
        )


#: What is small is waited for.
PATIENCE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class NewestCheckpoint:
    """What a look at the checkpoints found.

    Attributes:
        checkpoint: the newest valid one; None: there is none.
        history: of the job's checkpoints, as the board had it when the look began.
    """

    checkpoint: Checkpoint | None
    history: CheckpointHistory

    @property
    def entry(self) -> CheckpointEntry | None:
        """The checkpoint as the history knows it."""
        return None if self.checkpoint is None else self.checkpoint.entry


class CheckpointVerifier:
    """Used by one thread.

    Args:
        repository: where they are; used by the verifier alone.
        patience_s: see `PATIENCE_S`.
    """

    def __init__(self, repository: Repository, patience_s: float = PATIENCE_S) -> None:
        self._repository, self._patience_s = repository, patience_s
        self._look: _Look | None = None

    def newest(self, generation: int, history: CheckpointHistory) -> NewestCheckpoint | None:
        """The newest valid checkpoint; None: it is being read.

        Args:
            generation: that has ended; what was read for another one does not count.
            history: as the board has it.

        Raises:
            CheckpointUnavailable: the place cannot be read now.
        """
        asked, look = (generation, history), self._look
        if look is None or (look.over.is_set() and (look.taken or look.asked != asked)):
            known = look.found if look and look.asked[0] == generation else None
            look = self._look = _Look(self._repository, asked, known)
        if not look.over.wait(self._patience_s) or look.asked != asked:
            return None
        look.taken = True
        if look.error is not None:
            raise look.error
        return NewestCheckpoint(look.found, history)


class _Look:
    """One look at the place, in a thread; `known`: need not be read again if it is the newest."""

    def __init__(
        self,
        repository: Repository,
        asked: tuple[int, CheckpointHistory],
        known: Checkpoint | None,
    ) -> None:
        self.asked = asked
        self.found = known
        self.error: Exception | None = None
        self.over = threading.Event()
        self.taken = False
        threading.Thread(
            target=self._run, args=(repository,), name="edl-checkpoint-verifier", daemon=True
        ).start()

    def _run(self, repository: Repository) -> None:
        generation, history = self.asked
        try:
            self.found = repository.newest_of(history, generation or None, self.found)
        except Exception as error:
            self.error = error
        finally:
            self.over.set()


#: A write that is void is not waited for longer: others wait for this node to begin.
_VOID_S: Final = 2.0
_FOLDER: Final = "edl-student-"


class CheckpointManager:
    """See the module.

    Args:
        url: folder or fsspec URL of the checkpoints; None: a temporary folder, gone at the end.
        keep: checkpoints that a save leaves.
        board: that keeps the history of the job.
        job: its name.
        alone: no other node has this board, so the place is locked.

    Attributes:
        url: of the checkpoints.
        verifier: finds the newest valid one.

    Raises:
        UsageError: the URL cannot be opened by what is installed, or another training that is
            alone saves there.
    """

    def __init__(
        self, url: str | None, keep: int, board: JobBoard, job: str, alone: bool = False
    ) -> None:
        self._own = None if url else tempfile.mkdtemp(prefix=_FOLDER)
        self.url, self._keep = url or str(self._own), keep
        self._board, self._job = board, job
        # One for each thread: the supervisor's, the verifier's; the persister has a third.
        self._finding = Repository(self.url, keep)
        self._lock = self._finding.lock() if alone else None
        self.verifier = CheckpointVerifier(Repository(self.url, keep))
        self._provenance = Provenance()
        self._generation = 0
        self._open()

    def _open(self) -> None:
        self._owner = SnapshotOwner()
        self._saving = Repository(self.url, self._keep)
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
    def superseded(self) -> bool:
        """Whether a save was refused, as another generation has begun that is not followed yet."""
        return self._persister.superseded

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
        fence = HistoryFence(
            self._board, self._job, generation.number, before.name if before else ""
        )
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

    def find(self, origin: CheckpointEntry, history: CheckpointHistory) -> Checkpoint | None:
        """The checkpoint that a generation begins with; None: it is not on the disk (yet).

        One that could not join the history before has joined it now: that is noted in its folder.

        Args:
            origin: the checkpoint, as the generation names it.
            history: as the board has it now.

        Raises:
            CheckpointUnavailable: the place cannot be read now.
            UsageError: a checkpoint of this name has another manifest.
        """
        found = self._finding.find(origin.name)
        if found is None or found.problem:
            return None
        expected = expected_digest(origin, history)
        if expected and found.digest != expected:
            raise UsageError(
                f"the checkpoint {found.location} is not the one that the job goes on from: the"
                f" hash of its manifest begins with {found.digest[:12]}, and not with"
                f" {expected[:12]}. Start this node with the --checkpoint that the others have, or"
                " remove what another program has written there"
            )
        if origin.digest:
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


#: Seconds to wait for the node that writes checkpoints.
_OTHER_S: Final = 15.0
#: Seconds to wait for the generation that has superseded ours, which may begin with our snapshot.
_NEXT_S: Final = 15.0


class LastWrite:
    """Writes the newest snapshot before a node goes, where no other node does.

    It does not block, so that the node follows generations meanwhile: one that begins with this
    snapshot has it written under another name.

    Args:
        checkpoints: of the node.
        room_s: seconds to try.
    """

    def __init__(self, checkpoints: CheckpointManager, room_s: float) -> None:
        self._checkpoints, self._room_s = checkpoints, room_s
        self._since_s: float | None = None
        self._asked_s: float | None = None

    @property
    def asked(self) -> bool:
        """Whether this node writes it."""
        return self._asked_s is not None

    def done(self, writer_is_there: bool, follows: bool) -> bool:
        """Return whether the snapshot is on the disk; call it again until it is.

        Args:
            writer_is_there: another node writes checkpoints, and lives.
            follows: the node follows generations.

        Raises:
            CheckpointUnavailable: it cannot be written.
        """
        checkpoints, now_s = self._checkpoints, time.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        if checkpoints.written():
            return not (follows and checkpoints.superseded and now_s - self._since_s < _NEXT_S)
        if self._asked_s is None:
            if writer_is_there and now_s - self._since_s < _OTHER_S:
                return checkpoints.has(checkpoints.snapshot)
            checkpoints.write()
            self._asked_s = now_s
        if now_s - self._asked_s > self._room_s:
            raise CheckpointUnavailable(
                f"the checkpoint of step {checkpoints.snapshot} was not written:"
                f" {checkpoints.problem or 'it takes too long'}. The newest one on the disk:"
                f" {checkpoints.newest_in_words()}"
            )
        return False


def check_arrival(
    checkpoints: CheckpointManager, step: int, waited_s: float, node: str, found: Sequence[str]
) -> None:
    """Raise where what a generation begins with will not come to the disk.

    Args:
        checkpoints: what the node has.
        step: of the checkpoint that it waits for.
        waited_s: for how long.
        node: the id of this one.
        found: other nodes, which have found that checkpoint.

    Raises:
        CheckpointUnavailable: there is no room for it.
        UsageError: the nodes do not share their checkpoints.
    """
    if checkpoints.problem:
        raise CheckpointUnavailable(
            f"training stops at step {checkpoints.snapshot}, as its snapshot could not be written"
            f" for {waited_s:.0f} s: {checkpoints.problem}. Start the same command again: it goes"
            f" on from the newest checkpoint on the disk: {checkpoints.newest_in_words()}"
        )
    if found:
        raise UsageError(
            f"node {node} does not see the checkpoint of step {step}, which node {found[0]} sees:"
            f" the newest one at {checkpoints.url} is {checkpoints.newest_in_words()}. Nodes share"
            " their checkpoints: start all of them with a --checkpoint that they reach"
        )

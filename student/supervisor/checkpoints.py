"""The checkpoints of a node: snapshots in memory, and their copies on disk.

Ranks copy their state into memory that the supervisor owns, so it outlives them. A thread of the
`CheckpointManager` writes the newest snapshot, so that training does not wait for the disk. Written
checkpoints join the history of the job through `HistoryFence`. In a world, the first node writes.
If it is gone and the next generation starts from the snapshot of another node, that node writes it.

`CheckpointVerifier` finds the newest checkpoint that matches its checksums. Reading it completely
may take longer than the TTL of a node's lease, so a thread does it. It reads the checkpoint again
for each generation, as a disk may damage it later.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ...coordinator.jobs import Generation, JobBoard
from ...runtime.errors import CheckpointUnavailable, UsageError
from ...scheduler.students.fingerprint import Fingerprint
from ...scheduler.students.saving import CheckpointEntry, CheckpointHistory, expected_digest
from ..checkpoint import Checkpoint, Repository, SnapshotOwner
from ..checkpoint.checkpoint import Provenance
from ..checkpoint.persisting import LAST_WRITE_S, Persister
from ..checkpoint.repository import HistoryFence

#: Seconds that `CheckpointVerifier.newest` waits at most: enough to read a small checkpoint.
PATIENCE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class NewestCheckpoint:
    """Result of a search for the newest checkpoint.

    Attributes:
        checkpoint: the newest valid checkpoint; None: there is none.
    """

    checkpoint: Checkpoint | None

    @property
    def entry(self) -> CheckpointEntry | None:
        """The checkpoint as an entry of the history."""
        return None if self.checkpoint is None else self.checkpoint.entry


class CheckpointVerifier:
    """Finds the newest valid checkpoint; used by one thread at a time.

    Args:
        repository: the checkpoints; used only by the verifier.
        patience_s: see `PATIENCE_S`.
    """

    def __init__(self, repository: Repository, patience_s: float = PATIENCE_S) -> None:
        self._repository, self._patience_s = repository, patience_s
        self._request = (0, CheckpointHistory())
        self._search: Future[Checkpoint | None] | None = None
        self._returned = True  # `newest` has returned the result of the search
        self._result: Checkpoint | None = None  # of the last search for generation `_request[0]`

    def newest(self, generation: int, history: CheckpointHistory) -> NewestCheckpoint | None:
        """Return the newest valid checkpoint; None while it is being read.

        Args:
            generation: the last generation, 0: there was none; results for others are not reused.
            history: history on the board.

        Raises:
            CheckpointUnavailable: the place cannot be read now.
        """
        request, search = (generation, history), self._search
        if search is None or (search.done() and (self._returned or self._request != request)):
            search = self._begin(request)
        if not wait([search], self._patience_s).done or self._request != request:
            return None
        self._returned = True
        return NewestCheckpoint(search.result())

    def _begin(self, request: tuple[int, CheckpointHistory]) -> Future[Checkpoint | None]:
        """Start a search in a thread.

        A checkpoint that the last search for this generation returned is not read again.
        """
        if request[0] != self._request[0]:
            self._result = None
        self._request, self._returned = request, False
        search: Future[Checkpoint | None] = Future()
        self._search = search

        def run() -> None:
            generation, history = request
            try:
                self._result = self._repository.newest_for_next_generation(
                    history, generation or None, self._result
                )
                search.set_result(self._result)
            except Exception as error:
                search.set_exception(error)

        # A thread of an executor would keep the process from ending while a disk hangs.
        threading.Thread(target=run, name="edl-checkpoint-verifier", daemon=True).start()
        return search


#: Pause after a search of the place, as a multiple of the search's duration. So searches take a
#: small part of the supervisor's time and of the requests that a bucket allows.
_SEARCH_PAUSE: Final = 10.0
#: Longest such pause, in seconds.
_MOST_PAUSE_S: Final = 2.0
#: Longest wait, in seconds, for the end of a write of a void snapshot: other nodes wait for this
#: node.
_VOID_S: Final = 2.0
_FOLDER: Final = "edl-student-"


class CheckpointManager:
    """The snapshots and checkpoints of a node; see the module.

    Args:
        url: folder or fsspec URL of the checkpoints; None: a temporary folder, deleted at the end.
        keep: number of checkpoints that a save keeps.
        board: job board with the history.
        job: name of the job.
        alone: no other node uses this board, so lock the place against other trainings. False: the
            nodes of a job share the lock, and claim the place for the job.

    Attributes:
        url: folder or URL of the checkpoints.
        verifier: finds the newest valid checkpoint.
        persister: writes the snapshots; a new one replaces it when snapshots become void.

    Raises:
        UsageError: no installed package can open the URL, or another training saves there.
        CheckpointUnavailable: the file system behind the URL cannot be opened.
    """

    def __init__(
        self, url: str | None, keep: int, board: JobBoard, job: str, alone: bool = False
    ) -> None:
        self._temporary = None if url else tempfile.mkdtemp(prefix=_FOLDER)
        self.url, self._keep = url or str(self._temporary), keep
        self._board, self._job = board, job
        # A repository for each thread: the supervisor's, the verifier's, the persister's.
        self._search_repository = Repository(self.url, keep)
        self._lock = self._search_repository.lock(shared=not alone)
        try:
            if not alone:
                self._search_repository.claim(job)
        except UsageError:
            self._unlock()
            raise
        self.verifier = CheckpointVerifier(Repository(self.url, keep))
        self._provenance = Provenance()
        self._generation = 0
        self._search_again_s = 0.0  # when the next search may begin, by the monotonic clock
        self._open()

    def _open(self) -> None:
        self._owner = SnapshotOwner()
        self._save_repository = Repository(self.url, self._keep)
        self._save_repository.provenance = self._provenance
        self.persister = Persister(self._owner, self._save_repository)

    @property
    def snapshot(self) -> int:
        """Step of the newest snapshot in memory; -1: there is none."""
        step = self._owner.newest_step()
        return -1 if step is None else step

    @property
    def saved(self) -> int:
        """Step of the current persister's last checkpoint that joined the history; 0: none."""
        newest = self.persister.newest
        return 0 if newest is None else newest.step

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the memory of snapshots, for the ranks."""
        return tuple(self._owner.keys)

    def begin(self, generation: Generation, writes: bool) -> None:
        """Follow a new generation. Snapshots newer than its start are void.

        Args:
            generation: the new generation.
            writes: this node has the snapshot from which the generation starts, and must write it.
        """
        self._generation, world = generation.number, generation.world
        self._search_again_s = 0.0
        if self.snapshot > world.restored_step:
            self.persister.stop(_VOID_S)
            self._open()
        previous = generation.history.newest if writes else world.origin
        fence = HistoryFence(
            self._board, self._job, generation.number, previous.name if previous else ""
        )
        self.persister.follow(fence, world.origin.name if writes and world.origin else "")
        if writes:
            self.persister.wake()

    def set_provenance(self, checkpoint: Checkpoint | None, fingerprint: Fingerprint) -> None:
        """Set the provenance of later saves: that of `checkpoint`, continued by `fingerprint`."""
        previous, step = Provenance(), 0
        if checkpoint is not None:
            previous, step = checkpoint.provenance, checkpoint.step
        self._provenance = self._save_repository.provenance = previous.continued(step, fingerprint)

    def newest_in_words(self) -> str:
        """Return the newest valid checkpoint on disk as text, for messages."""
        try:
            newest = next((one for one in self._search_repository.list() if one.valid), None)
        except CheckpointUnavailable as error:
            return f"not known: {error}"
        return "none" if newest is None else f"that of step {newest.step}"

    @property
    def search_due(self) -> bool:
        """Whether to call `find` or `has` again: a slow place is searched with pauses."""
        return time.monotonic() >= self._search_again_s

    def find(self, origin: CheckpointEntry, history: CheckpointHistory) -> Checkpoint | None:
        """Return the checkpoint that a generation starts from.

        None: it is not on disk, damaged, or not in the history yet. A generation adds its origin to
        the history; if the checkpoint's folder does not record that yet, this call records it.

        Args:
            origin: the checkpoint, as the generation names it.
            history: history on the board.

        Raises:
            CheckpointUnavailable: the place cannot be read now.
            UsageError: a checkpoint of this name has another manifest.
        """
        with self._measured_search():
            checkpoint = self._search_repository.find(origin.name)
        if checkpoint is None or checkpoint.problem:
            return None
        expected = expected_digest(origin, history)
        if expected and checkpoint.digest != expected:
            raise UsageError(
                f"the checkpoint {checkpoint.location} is not the one that the job goes on from:"
                f" the hash of its manifest begins with {checkpoint.digest[:12]}, not with"
                f" {expected[:12]}. Start this node with the --checkpoint that the others have, or"
                " remove what another program has written there"
            )
        if origin.digest:
            self._search_repository.mark(origin)
            return checkpoint
        return checkpoint if checkpoint.sequence else None

    def has(self, step: int) -> bool:
        """Whether the current generation has saved this step.

        Raises:
            CheckpointUnavailable: the place cannot be read now.
        """
        with self._measured_search():
            return any(
                one.step == step and one.valid and one.generation == self._generation
                for one in self._search_repository.list()
            )

    @contextmanager
    def _measured_search(self) -> Iterator[None]:
        began_s = time.monotonic()
        self._search_again_s = began_s + _MOST_PAUSE_S  # if it fails
        yield
        now_s = time.monotonic()
        self._search_again_s = now_s + min(_MOST_PAUSE_S, _SEARCH_PAUSE * (now_s - began_s))

    def close(self) -> None:
        """Stop writing, free the memory, and delete the temporary folder."""
        self.persister.stop(LAST_WRITE_S)
        self._unlock()
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()


#: Seconds to wait for the node that writes checkpoints.
_WRITER_S: Final = 15.0
#: Seconds to wait for the generation after this node's: it may start from this node's snapshot.
_SUCCESSOR_S: Final = 15.0


class FinalSnapshotWriter:
    """Writes the newest snapshot before a node leaves, unless another node does.

    No method waits for the write, so the node still follows generations meanwhile: if one starts
    from this snapshot, the node must write the snapshot under the name that the generation gave it.

    Args:
        checkpoints: checkpoints of the node.
        timeout_s: seconds to try.
    """

    def __init__(self, checkpoints: CheckpointManager, timeout_s: float) -> None:
        self._checkpoints, self._timeout_s = checkpoints, timeout_s
        self._since_s: float | None = None
        self._writes_since_s: float | None = None

    @property
    def is_writing(self) -> bool:
        """Whether this node tries to write the snapshot."""
        return self._writes_since_s is not None

    def may_leave(self, writer_is_there: bool, follows_generations: bool) -> bool:
        """Return whether the node may leave; call this until it returns True.

        Args:
            writer_is_there: another node writes checkpoints, and it is alive.
            follows_generations: the node still follows generations.

        Raises:
            CheckpointUnavailable: the snapshot could not be written in time.
        """
        checkpoints, now_s = self._checkpoints, time.monotonic()
        persister = checkpoints.persister
        if self._since_s is None:
            self._since_s = now_s
        if persister.on_disk:
            waits = now_s - self._since_s < _SUCCESSOR_S
            return not (follows_generations and persister.superseded and waits)
        if self._writes_since_s is None:
            if writer_is_there and now_s - self._since_s < _WRITER_S:
                try:
                    return checkpoints.search_due and checkpoints.has(checkpoints.snapshot)
                except CheckpointUnavailable:
                    return False  # look again; after `_WRITER_S` this node tries to write it
            persister.wake()
            self._writes_since_s = now_s
        if now_s - self._writes_since_s > self._timeout_s:
            raise CheckpointUnavailable(
                f"the checkpoint of step {checkpoints.snapshot} was not written:"
                f" {persister.problem or 'it takes too long'}. The newest one on the disk:"
                f" {checkpoints.newest_in_words()}"
            )
        return False


def raise_if_unreachable(
    checkpoints: CheckpointManager, step: int, waited_s: float, node: str, seen_by: Sequence[str]
) -> None:
    """Raise an error if it is clear that this node cannot get the checkpoint of a generation.

    Args:
        checkpoints: checkpoints of this node.
        step: step of the checkpoint that it waits for.
        waited_s: seconds for which it has waited.
        node: id of this node.
        seen_by: ids of other nodes that have found the checkpoint.

    Raises:
        CheckpointUnavailable: this node could not write its snapshot.
        UsageError: the nodes do not share their checkpoints.
    """
    if problem := checkpoints.persister.problem:
        raise CheckpointUnavailable(
            f"training stops at step {checkpoints.snapshot}, as its snapshot could not be written"
            f" for {waited_s:.0f} s: {problem}. Start the same command again: it goes"
            f" on from the newest checkpoint on the disk: {checkpoints.newest_in_words()}"
        )
    if seen_by:
        raise UsageError(
            f"node {node} does not see the checkpoint of step {step}, which node {seen_by[0]} sees."
            f" The newest one that {node} sees at {checkpoints.url}:"
            f" {checkpoints.newest_in_words()}. Nodes share their checkpoints: start all of them"
            " with a --checkpoint that all can read"
        )

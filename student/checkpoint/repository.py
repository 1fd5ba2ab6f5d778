"""A repository of the checkpoints of one training; the newest whole one can always be loaded.

```
PLACE/JOB-digits                               elastic trainings: the job that saves here
      step-000000000100/model.safetensors      the arrays, a file for each group
                        optimizer.safetensors
                        state.json             everything else
                        MANIFEST.json          lengths and checksums of these; written after them
                        JOINED.json            elastic trainings: its position in the history
```

A folder without a manifest is no checkpoint. A checkpoint that matches its manifest is *whole*,
else it is *damaged*. When a training starts, it skips damaged ones with a warning, and takes the
previous one.

With a *fence* a save takes two steps: `write` creates a checkpoint outside the training's history,
and `join` makes it the newest of that history, if the fence allows it
(`scheduler/students/saving.py`). Without a fence a checkpoint counts as soon as it is written.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO

from ...runtime.errors import (
    CheckpointDamaged,
    CheckpointUnavailable,
    EdlError,
    GenerationSuperseded,
    UsageError,
)
from ...scheduler.students.saving import (
    DEFAULT_KEEP,
    CheckpointEntry,
    CheckpointHistory,
    StoredCheckpoint,
    may_continue,
    may_join,
    newest_first,
    to_prune,
)
from . import file_format
from .checkpoint import (
    JOINED,
    MANIFEST,
    Checkpoint,
    Provenance,
    inspect,
    joined_record,
    pack_manifest,
    read_manifest,
)
from .contents import Contents
from .storage import (
    CLAIM,
    LEFTOVER_S,
    MOST_STEPS,
    Storage,
    begun_s,
    open_storage,
    step_of,
    unique_name_of,
)

if TYPE_CHECKING:
    from ...coordinator.jobs import JobBoard

log = logging.getLogger(__name__)


class HistoryFence:
    """Lets saves of one generation join the history while that generation is the current one.

    Args:
        board: job board with the history.
        job: name of the job.
        generation: number of the generation that saves.
        after: name of the checkpoint that its first save continues; empty: there is none.

    Attributes:
        generation: number of the generation that saves.
        after: name of the checkpoint that the next save continues.
    """

    def __init__(self, board: JobBoard, job: str, generation: int, after: str) -> None:
        self._board, self._job = board, job
        self.generation, self.after = generation, after

    def history(self) -> CheckpointHistory:
        """Return the history.

        Raises:
            GenerationSuperseded: another generation has begun.
            WireError: the history is invalid, or of another version.
            EdlError: an error of the board.
        """
        record = self._board.generation(self._job)
        if record is None or record.number != self.generation:
            raise GenerationSuperseded(f"generation {self.generation} of {self._job} is over")
        return record.checkpoint_history()

    def replace(self, known: CheckpointHistory, history: CheckpointHistory) -> bool:
        """Replace the history if it equals `known`; return whether it did. Raises as `history`."""
        return self._board.replace_history(
            self._job, self.generation, known.to_json(), history.to_json()
        )


class Repository:
    """The checkpoints at one place; see the module.

    Only one thread at a time may use it. Any number of processes may use the same place.

    Args:
        url: a folder, or a URL of fsspec (s3://, gs://, hdfs://, ...).
        keep: number of whole checkpoints that a save, or `prune`, keeps.

    Attributes:
        provenance: written into the manifest of each checkpoint that is saved from now on.

    Raises:
        UsageError: `keep` is below 1, or no installed package can open the URL.
        CheckpointUnavailable: the file system behind the URL cannot be opened.
    """

    def __init__(self, url: str, keep: int = DEFAULT_KEEP) -> None:
        if keep < 1:
            raise UsageError(f"at least one checkpoint is kept, not {keep}")
        self._storage: Storage = open_storage(url)
        self._keep = keep
        self.provenance = Provenance()
        #: Damaged checkpoints: name to problem. Pruning does not count them as checkpoints to keep.
        self._damaged: dict[str, str] = {}
        self._missing: set[str] = set()  # names of missing checkpoints that were logged
        self._skipped: set[str] = set()  # names of damaged checkpoints that were logged

    @property
    def url(self) -> str:
        """The place, as messages name it."""
        return self._storage.url

    def save(self, contents: Contents) -> Checkpoint:
        """Write a checkpoint without a fence, then remove old ones.

        When this returns, the checkpoint is complete and, if the place is a folder, synced to disk.
        A crash before that leaves the earlier checkpoints.

        Raises:
            CheckpointUnavailable: there is no space, or the place cannot be written. Earlier
                checkpoints stay.
            UsageError: the step is too large, or the state is not JSON.
        """
        written = self.write(contents)
        return self.join(written) or written

    def write(
        self, contents: Contents, fence: HistoryFence | None = None, name: str = ""
    ) -> Checkpoint:
        """Write a checkpoint. With a fence, it is outside the history until `join`.

        Args:
            contents: its contents.
            fence: fence of the generation that saves; None: there is no history.
            name: name of its folder; empty: a new one.

        Raises:
            CheckpointUnavailable: there is no space, or the place cannot be written. Earlier
                checkpoints stay.
            UsageError: the step is too large, or the state is not JSON.
        """
        if contents.step >= MOST_STEPS:
            raise UsageError(f"step {contents.step} is too large for the name of a checkpoint")
        self._storage.tidy()
        if name and (written := self.find(name)) is not None and not written.problem:
            return written  # by an earlier attempt
        after = ""
        if fence is not None:
            after = fence.after
            name = name or self._free_name(contents.step, fence.generation)
        draft = self._storage.draft(contents.step, contents.nbytes, name)
        try:
            files = file_format.write(draft, contents)
            packed = pack_manifest(contents, files, self.provenance, after)
            name = draft.commit(packed)
        except BaseException:
            draft.abort()
            raise
        self._damaged.pop(name, None)  # an earlier checkpoint had this name
        self._skipped.discard(name)
        return Checkpoint.unpack_manifest(packed, name, self._storage.location(name))

    def _free_name(self, step: int, generation: int) -> str:
        """Return an unused name: names of two saves in one second may be equal."""
        taken = set(self._storage.names())
        while (name := unique_name_of(step, generation)) in taken:
            pass
        return name

    def join(self, written: Checkpoint, fence: HistoryFence | None = None) -> Checkpoint | None:
        """Make a checkpoint the newest of the history, then remove old ones.

        After any error, it may be called again for the same checkpoint.

        Args:
            written: result of `write`.
            fence: the fence passed to `write`.

        Returns:
            The checkpoint with its position in the history. None: it has none, because one of the
            same generation and of this or a later step has joined.

        Raises:
            GenerationSuperseded: another generation is the current one; the checkpoint stays
                outside the history.
            CheckpointUnavailable: the place cannot be read or written.
            EdlError: the store of the history does not answer.
        """
        if fence is None:
            self._remove_old(written, lambda: to_prune(self._stored_after(written), self._keep))
            return written
        history = fence.history()
        while history.newest is None or history.newest.name != written.name:
            if not may_join(history, written.step, fence.generation):
                return None
            newest = 0
            if history.newest is not None:
                self.mark(history.newest)  # its writer may have died before it marked it
                newest = history.newest.sequence
            newest = max([newest, *(one.sequence for one in self.list())])
            joined = replace(written, sequence=newest + 1)
            extended = CheckpointHistory(
                joined.entry, tuple(to_prune(self._stored_after(joined), self._keep))
            )
            history = extended if fence.replace(history, extended) else fence.history()
        assert history.newest is not None
        joined = replace(written, sequence=history.newest.sequence)
        self.mark(history.newest)
        fence.after = written.name
        self._remove_old(joined, lambda: history.dropped)
        return joined

    def mark(self, entry: CheckpointEntry) -> None:
        """Record in a checkpoint's folder, by the file `JOINED`, that it has joined the history.

        No effect if the folder is missing, records it already, or has another manifest.

        Raises:
            CheckpointUnavailable: the place cannot be read or written.
        """
        checkpoint = self.find(entry.name)
        if checkpoint is None or checkpoint.eligible:
            return
        if checkpoint.digest == entry.digest:
            self._storage.add(entry.name, JOINED, joined_record(entry))

    def newest_for_next_generation(
        self, history: CheckpointHistory, generation: int | None, known: Checkpoint | None = None
    ) -> Checkpoint | None:
        """Return the newest valid checkpoint for the next generation; None if there is none.

        Usually it belongs to the history. If the writer of the newest entry died before it wrote
        `JOINED`, this call writes `JOINED`. A checkpoint that could not join, because its writer
        died or the board did not answer, takes precedence if it is whole, continues the newest
        entry, and was saved by the last generation.

        Args:
            history: history on the board.
            generation: the last generation; None: the board has none, so a save of any
                generation may continue the newest entry.
            known: a verified checkpoint, which is not read again if it is the newest.

        Raises:
            CheckpointUnavailable: the place cannot be read now.
        """
        if history.newest is not None:
            self.mark(history.newest)
        listed = self.list()
        self._warn_if_missing(history.newest, listed)
        last = next((one.name for one in listed if one.eligible), "")
        # The next save must follow the newest entry even if that is missing here for a while.
        newest = 0 if history.newest is None else history.newest.sequence
        for checkpoint in listed:
            if checkpoint.eligible or checkpoint.problem:
                continue
            if not may_continue(checkpoint.after, checkpoint.generation, last, generation):
                continue
            if (known and checkpoint.name == known.name) or self._is_whole(checkpoint):
                sequence = max(newest, *(one.sequence for one in listed)) + 1
                return replace(checkpoint, sequence=sequence)
            self._warn_if_skipped(checkpoint)
        valid = next((one for one in listed if one.valid), None)
        if valid is None or known is None or valid.name != known.name:
            valid = self.newest_valid(history.dropped)
        return None if valid is None else replace(valid, sequence=max(valid.sequence, newest))

    def _warn_if_missing(
        self, newest: CheckpointEntry | None, listed: Sequence[Checkpoint]
    ) -> None:
        """Log once that the newest checkpoint of the history is missing here."""
        if newest is None or newest.name in self._missing:
            return
        if all(one.name != newest.name for one in listed):
            self._missing.add(newest.name)
            log.warning(
                "the newest checkpoint of this job, %s of step %d, is not in %s: training goes on"
                " from an older one, or from the beginning. If nobody has removed it, it was saved"
                " elsewhere: all nodes, and later runs, need a --checkpoint that they share",
                *(newest.name, newest.step, self.url),
            )

    def list(self) -> Sequence[Checkpoint]:
        """Return all checkpoints, the newest first; reads manifests, `JOINED` and lengths of files.

        Raises:
            CheckpointUnavailable: the place cannot be read now.
        """
        names = {*self._storage.names()}
        while not (by_name := {name: one for name in names if (one := self._inspect(name))}):
            if names == (current := {*self._storage.names()}):
                return []
            names = current  # other processes have replaced all of them meanwhile
        stored = [self._stored(one) for one in by_name.values()]
        return [by_name[one.name] for one in newest_first(stored)]

    def newest_valid(self, dropped: Sequence[str] = ()) -> Checkpoint | None:
        """Read checkpoints, and return the newest one that matches its checksums; None: none does.

        Damaged ones are skipped; the first time, a warning names file and reason. Others that have
        not joined the history are skipped, too.

        Args:
            dropped: names of checkpoints to skip, as they may be removed at any time.

        Raises:
            CheckpointUnavailable: the place cannot be read now.
        """
        tried = set(dropped)
        while candidates := [
            one for one in self.list() if (one.eligible or one.problem) and one.name not in tried
        ]:
            # First those that are not eligible: they are damaged, and each needs a warning.
            checkpoint = min(candidates, key=lambda one: one.eligible)
            tried.add(checkpoint.name)
            if checkpoint.name in self._damaged or not self._is_whole(checkpoint):
                self._warn_if_skipped(checkpoint)
            elif checkpoint.eligible:
                return checkpoint
        return None

    def _warn_if_skipped(self, checkpoint: Checkpoint) -> None:
        """Log once that a damaged checkpoint is skipped, unless it was pruned meanwhile."""
        name = checkpoint.name
        if name in self._skipped or self._inspect(name) is None:
            return
        self._skipped.add(name)
        log.warning(
            "the checkpoint %s is damaged: %s; it is skipped, and an older checkpoint is tried",
            checkpoint.location,
            self._damaged[name],
        )

    def verify(self, checkpoint: Checkpoint) -> None:
        """Read all files of a checkpoint, and compare them with their checksums.

        Raises:
            CheckpointDamaged: a file is missing, of another length, or fails its checksum.
            CheckpointUnavailable: the place cannot be read now.
        """
        with self._recording_damage(checkpoint):
            file_format.verify(self._storage, read_manifest(self._storage, checkpoint.name))

    def load(self, checkpoint: Checkpoint) -> Contents:
        """Read and verify a checkpoint, into new memory.

        Raises:
            CheckpointDamaged: a file is missing, of another length, or fails its checksum.
            CheckpointUnavailable: the place cannot be read now.
        """
        with self._recording_damage(checkpoint):
            return file_format.read(self._storage, read_manifest(self._storage, checkpoint.name))

    def prune(self, dry_run: bool = False) -> Sequence[Checkpoint]:
        """Remove old checkpoints, except the newest whole ones that the repository keeps.

        The kept ones are read and verified first, so they can be loaded.

        Args:
            dry_run: remove nothing.

        Returns:
            The removed checkpoints, the oldest first; in a dry run, those that would be removed.

        Raises:
            CheckpointUnavailable: the place cannot be read or written.
        """
        whole_count = 0
        for one in self.list():
            if whole_count < self._keep and one.valid:
                whole_count += self._is_whole(one)
        by_name = {one.name: one for one in self.list()}
        names = to_prune([self._stored(one) for one in by_name.values()], self._keep)
        for name in () if dry_run else names:
            self._storage.remove(name)
        return [by_name[name] for name in names]

    def find(self, name: str) -> Checkpoint | None:
        """Return the checkpoint in the folder of that name; None if there is none."""
        # Listing the names avoids stale data from the cache of fsspec.
        return self._inspect(name) if name in self._storage.names() else None

    def claim(self, job: str) -> None:
        """Claim the place for a job with a coordinator; it keeps the claim after its end.

        Without effect if the place cannot be read or written now, which a save will report.

        Raises:
            UsageError: another job claims it, or has done so at the same time.
        """
        with contextlib.suppress(CheckpointUnavailable):
            is_new = not (claims := self._storage.claims())
            if is_new:
                self._storage.claim(job)
                claims = self._storage.claims()
            if others := sorted({*claims} - {job}):
                if is_new:
                    self._storage.unclaim(job)
                raise UsageError(
                    f"the checkpoints at {self.url} are those of job {others[0]}. Give job {job}"
                    f" another --checkpoint; or, if {job} should go on from them and {others[0]}"
                    f" never runs again, remove the file {CLAIM}{others[0]} there"
                )

    def lock(self, shared: bool = False) -> BinaryIO | None:
        """Lock the place, so that no other training without a coordinator saves here.

        Args:
            shared: other holders may share it: the nodes of a job with a coordinator.

        Returns:
            A file, which holds the lock until it is closed; None if the place cannot be locked.

        Raises:
            UsageError: another training has the lock.
        """
        try:
            return self._storage.lock(shared)
        except BlockingIOError as error:
            raise UsageError(
                f"another training saves its checkpoints to {self.url}. Give this one another"
                " --checkpoint; or start both with the same --redis, as nodes of one job"
            ) from error

    def _stored_after(self, saved: Checkpoint) -> Sequence[StoredCheckpoint]:
        """Return all checkpoints in the scheduler's form, after `saved` was saved.

        A training may have continued from an older checkpoint because a newer one is damaged. The
        newer one may look whole, so checkpoints newer than `saved` are verified before they count.
        """
        listed = [one for one in self.list() if one.name != saved.name]
        for one in listed:
            newer = one.step > saved.step or one.sequence > saved.sequence
            if newer and one.valid:
                self._is_whole(one)
        listed = [one for one in self.list() if one.name != saved.name]
        return [self._stored(one, saved) for one in [saved, *listed]]

    def _stored(self, checkpoint: Checkpoint, saved: Checkpoint | None = None) -> StoredCheckpoint:
        """Return a checkpoint in the scheduler's form, after `saved`, if any, was saved."""
        if saved is not None and saved.sequence:
            same_generation = checkpoint.generation == saved.generation
            pending = same_generation and checkpoint.step > saved.step
        else:  # its writer may still be alive
            pending = time.time() - (begun_s(checkpoint.name) or 0) < LEFTOVER_S
        return StoredCheckpoint(
            checkpoint.name,
            checkpoint.step,
            checkpoint.made_s,
            checkpoint.valid,
            checkpoint.sequence,
            pending and not checkpoint.eligible,
        )

    def _remove_old(self, saved: Checkpoint, find_old: Callable[[], Sequence[str]]) -> None:
        """Remove the checkpoints named by `find_old()`, but never `saved`."""
        try:
            for name in find_old():
                if name != saved.name:
                    self._storage.remove(name)
        except EdlError as error:
            log.warning("old checkpoints stay: %s", error)

    def _is_whole(self, checkpoint: Checkpoint) -> bool:
        try:
            self.verify(checkpoint)
        except CheckpointDamaged:
            return False
        return True

    def _inspect(self, name: str) -> Checkpoint | None:
        return inspect(self._storage, name, self._damaged.get(name, ""))

    @contextlib.contextmanager
    def _recording_damage(self, checkpoint: Checkpoint) -> Iterator[None]:
        """Name the checkpoint in errors of the context, and record that it is damaged."""
        try:
            yield
        except (CheckpointDamaged, FileNotFoundError) as error:
            missing = isinstance(error, FileNotFoundError)
            problem = f"{MANIFEST} is missing" if missing else str(error)
            self._damaged[checkpoint.name] = problem
            raise CheckpointDamaged(
                f"the checkpoint {checkpoint.location} is damaged: {problem}"
            ) from error


def open_checkpoint(location: str) -> Contents:
    """Load a checkpoint.

    Args:
        location: path or URL of a checkpoint (`Checkpoint.location`), or of a repository: then its
            newest valid one is loaded.

    Returns:
        Contents with memory of their own.

    Raises:
        UsageError: there is no checkpoint.
        CheckpointDamaged: the named checkpoint is damaged.
        CheckpointUnavailable: the place cannot be read now.
    """
    repository, checkpoint = located(location)
    checkpoint = checkpoint or repository.newest_valid()
    if checkpoint is None:
        raise UsageError(f"there is no checkpoint at {location}")
    return repository.load(checkpoint)


def located(location: str) -> tuple[Repository, Checkpoint | None]:
    """Return the repository of a path or URL, and the checkpoint, if the location names one.

    Raises:
        UsageError: there is no such checkpoint.
        CheckpointUnavailable: the place cannot be read now.
    """
    place, _, name = location.rstrip("/").rpartition("/")
    if step_of(name) is None:
        return Repository(location), None
    repository = Repository(place or ("/" if location.startswith("/") else "."))
    if (checkpoint := repository.find(name)) is None:
        raise UsageError(f"there is no checkpoint at {location}")
    return repository, checkpoint

"""A place with the checkpoints of one training: the newest that is whole can always be had.

```
PLACE/step-000000000100/model.safetensors      the arrays, a file for each group
                        optimizer.safetensors
                        state.json             everything else
                        MANIFEST.json          lengths and checksums of these; written last
                        JOINED.json            elastic trainings: its place in the history
```

What has no manifest is no checkpoint. What does not agree with it is damaged: it is passed over
with a warning, and the one before it is taken.

With a *fence* a save takes two steps: `write` makes a checkpoint that nobody goes on from, and
`join` makes it the newest of the training's history, if the fence lets it
(`scheduler/students/saving.py`). Without one a checkpoint counts as soon as it is written.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, Protocol

from ...proto.shared_buffer import descriptor_of
from ...runtime.errors import CheckpointDamaged, EdlError, UsageError
from ...scheduler.students.saving import (
    CheckpointEntry,
    CheckpointHistory,
    StoredCheckpoint,
    may_continue,
    may_join,
    newest_first,
    to_prune,
)
from . import checked
from .checkpoint import (
    JOINED,
    MANIFEST,
    Checkpoint,
    Joined,
    Provenance,
    checkpoint_from,
    digest_of,
    inspect,
    read_manifest,
)
from .contents import Contents
from .files import LEFTOVER_S, MOST_STEPS, Files, Lock, begun_s, open_files, step_of, unique_name_of
from .snapshot import newest_of, open_slots

log = logging.getLogger(__name__)

DEFAULT_KEEP: Final = 3


class Fence(Protocol):
    """Lets the saves of one generation join the history as long as it is the current one.

    Attributes:
        generation: whose saves these are.
        after: name of the checkpoint that the next save continues; empty: it is the first.
    """

    generation: int
    after: str

    def history(self) -> CheckpointHistory:
        """The history. Raises GenerationSuperseded, or an error of whoever keeps it."""

    def replace(self, known: CheckpointHistory, history: CheckpointHistory) -> bool:
        """Replace the history, if it still is `known`; whether it was. Raises as above."""


class Repository:
    """See the module. One thread at a time; any number of processes.

    Args:
        url: a folder, or a URL of fsspec (s3://, gs://, hdfs://, ...).
        keep: whole checkpoints that a save leaves.

    Attributes:
        provenance: written into the manifest of each checkpoint that is saved from now on.

    Raises:
        UsageError: `keep` is below 1, or the URL cannot be opened by what is installed.
    """

    def __init__(self, url: str, keep: int = DEFAULT_KEEP) -> None:
        if keep < 1:
            raise UsageError(f"at least one checkpoint is kept, not {keep}")
        self._files: Files = open_files(url)
        self._keep = keep
        self.provenance = Provenance()
        #: What this process found damaged, by name: it must not push a whole one out.
        self._damaged: dict[str, str] = {}
        self._missing: set[str] = set()  # names of checkpoints that it has warned of

    @property
    def url(self) -> str:
        """The place, as messages name it."""
        return self._files.url

    def save(self, contents: Contents) -> Checkpoint:
        """Write a checkpoint, then remove those that have served.

        It is there as a whole when this returns, on the disk where the place is a file system; a
        death at any moment before leaves those that were there.

        Raises:
            CheckpointUnavailable: no room, or a place that refuses. What was there stays.
        """
        written = self.write(contents)
        return self.join(written) or written

    def write(self, contents: Contents, fence: Fence | None = None, name: str = "") -> Checkpoint:
        """Write a checkpoint, which counts once it has joined the history.

        Args:
            contents: what it holds.
            fence: of the generation that saves; None: there are no generations, and no history.
            name: of its folder; empty: a new one.

        Raises:
            CheckpointUnavailable: no room, or a place that refuses. What was there stays.
        """
        if contents.step >= MOST_STEPS:
            raise UsageError(f"step {contents.step} is beyond what a checkpoint's name holds")
        self._files.tidy()
        if name and (one := self.find(name)) is not None and not one.problem:
            return one  # an attempt before this one came so far
        after = ""
        if fence is not None:
            after = fence.after
            name = name or self._free_name(contents.step, fence.generation)
        draft = self._files.draft(contents.step, contents.nbytes, name)
        try:
            manifest = checked.write(draft, contents, self.provenance, after)
            packed = manifest.pack()
            name = draft.commit(packed)
        except BaseException:
            draft.abort()
            raise
        return checkpoint_from(self._files, name, manifest, digest_of(packed))

    def _free_name(self, step: int, generation: int) -> str:
        """A new name; the random part of one may repeat that of another save of its second."""
        taken = set(self._files.names())
        while (name := unique_name_of(step, generation)) in taken:
            pass
        return name

    def join(self, written: Checkpoint, fence: Fence | None = None) -> Checkpoint | None:
        """Make a checkpoint the newest of the history, then remove those that have served.

        It may be called again for the same one, after any error.

        Args:
            written: what `write` gave.
            fence: that `write` had.

        Returns:
            The checkpoint, as it counts now. None: it does not, as a later one of the same
            generation does.

        Raises:
            GenerationSuperseded: another generation is the current one; the checkpoint stays
                outside the history.
            CheckpointUnavailable: a place that refuses.
            EdlError: whoever keeps the history does not answer.
        """
        if fence is None:
            self._clear_behind(written, lambda: to_prune(self._found(written), self._keep))
            return written
        history = fence.history()
        while history.newest is None or history.newest.name != written.name:
            if not may_join(history, written.step, fence.generation):
                return None
            newest = 0
            if history.newest is not None:
                self.mark(history.newest)  # whoever had it join may have died before
                newest = history.newest.sequence
            newest = max([newest, *(one.sequence for one in self.list())])
            joined = replace(written, sequence=newest + 1)
            following = CheckpointHistory(
                joined.entry, tuple(to_prune(self._found(joined), self._keep))
            )
            history = following if fence.replace(history, following) else fence.history()
        assert history.newest is not None
        joined = replace(written, sequence=history.newest.sequence)
        self.mark(history.newest)
        fence.after = written.name
        self._clear_behind(joined, lambda: history.dropped)
        return joined

    def mark(self, entry: CheckpointEntry) -> None:
        """Note in a checkpoint's folder that it has joined the history, unless it is noted.

        Raises:
            CheckpointUnavailable: a place that refuses.
        """
        one = self.find(entry.name)
        if one is not None and not one.counts and one.digest == entry.digest:
            self._files.add(entry.name, JOINED, Joined(entry.sequence, entry.digest).pack())

    def newest_of(
        self, history: CheckpointHistory, generation: int | None, known: Checkpoint | None = None
    ) -> Checkpoint | None:
        """The newest valid checkpoint for the generation that follows.

        What has joined the history counts, also where its writer died before it could note so in
        the folder: that is done now. Besides, a save may be taken that was written whole and could
        not join, as its writer died or the board was away: it has to continue the newest of the
        history, and to be of the generation that was the last one.

        Args:
            history: as the board knows it.
            generation: the last one; None: the board knows none.
            known: need not be read again if it is the newest.

        Raises:
            CheckpointUnavailable: the place cannot be read now.
        """
        if history.newest is not None:
            self.mark(history.newest)
        listed = self.list()
        self._warn_if_missing(history.newest, listed)
        last = next((one.name for one in listed if one.counts), "")
        for one in listed:
            if one.counts or one.problem:
                continue
            if not may_continue(one.after, one.generation, last, generation):
                continue
            if (known and one.name == known.name) or self._is_whole(one):
                return replace(one, sequence=max(other.sequence for other in listed) + 1)
        valid = next((one for one in listed if one.valid), None)
        if valid is None or known is None or valid.name != known.name:
            valid = self.newest_valid(history.dropped)
        if valid is None or history.newest is None:
            return valid
        # The next save comes behind the newest also where that is missing for a while.
        return replace(valid, sequence=max(valid.sequence, history.newest.sequence))

    def _warn_if_missing(
        self, newest: CheckpointEntry | None, listed: Sequence[Checkpoint]
    ) -> None:
        """Say once that the newest checkpoint of the history is not here."""
        if newest is None or newest.name in self._missing:
            return
        if all(one.name != newest.name for one in listed):
            self._missing.add(newest.name)
            log.warning(
                "the newest checkpoint of this job, %s of step %d, is not in %s: training goes on"
                " from an older one, or from the beginning. If nobody has removed it, other nodes"
                " have saved elsewhere: all need a --checkpoint that they share",
                *(newest.name, newest.step, self.url),
            )

    def list(self) -> Sequence[Checkpoint]:
        """All checkpoints, the newest first; only manifests and lengths of files are looked at.

        Raises:
            CheckpointUnavailable: the place cannot be read now.
        """
        by_name = {one.name: one for name in self._files.names() if (one := self._look(name))}
        found = [self._as_found(one) for one in by_name.values()]
        return [by_name[one.name] for one in newest_first(found)]

    def newest_valid(self, dropped: Sequence[str] = ()) -> Checkpoint | None:
        """The newest one of which every byte is as it was written; None where there is none.

        Damaged ones are passed over, with a warning that names file and reason; one for each. What
        has not joined the history is passed over, too.

        Args:
            dropped: names of others that are passed over, as they may be removed at any time.

        Raises:
            CheckpointUnavailable: the place cannot be read now.
        """
        passed = set(dropped)
        while left := [
            one for one in self.list() if (one.counts or one.problem) and one.name not in passed
        ]:
            # First those that may have joined, whatever their place was: it has to be said.
            checkpoint = min(left, key=lambda one: one.counts)
            passed.add(checkpoint.name)
            if checkpoint.name in self._damaged:  # said before
                continue
            try:
                self.verify(checkpoint)
                if checkpoint.counts:
                    return checkpoint
            except CheckpointDamaged as error:
                if self._look(checkpoint.name) is not None:  # else it was pruned meanwhile
                    log.warning("%s; it is passed over, and the one before it is taken", error)
        return None

    def verify(self, checkpoint: Checkpoint) -> None:
        """Read all of it and hold it against its checksums.

        Raises:
            CheckpointDamaged: a file is missing, of another length, or fails its checksum.
            CheckpointUnavailable: the place cannot be read now.
        """
        with self._blamed(checkpoint):
            checked.verify(
                self._files, checkpoint.name, read_manifest(self._files, checkpoint.name)[0]
            )

    def load(self, checkpoint: Checkpoint) -> Contents:
        """What it holds, in memory of its own; every byte is verified on the way.

        Raises:
            CheckpointDamaged: a file is missing, of another length, or fails its checksum.
            CheckpointUnavailable: the place cannot be read now.
        """
        with self._blamed(checkpoint):
            return checked.read(
                self._files, checkpoint.name, read_manifest(self._files, checkpoint.name)[0]
            )

    def prune(self, keep: int | None = None, dry_run: bool = False) -> Sequence[Checkpoint]:
        """Remove checkpoints that have served, but for the `keep` newest whole ones.

        These are read and verified first: what is left can be loaded.

        Args:
            keep: instead of the repository's own.
            dry_run: remove nothing.

        Returns:
            What is gone, or would be: the oldest first.

        Raises:
            UsageError: `keep` is below 1.
            CheckpointUnavailable: the place refuses.
        """
        if keep is not None and keep < 1:
            raise UsageError(f"at least one checkpoint is kept, not {keep}")
        keep = keep or self._keep
        whole = 0
        for one in self.list():
            if whole < keep and one.valid:
                whole += self._is_whole(one)
        by_name = {one.name: one for one in self.list()}
        names = to_prune([self._as_found(one) for one in by_name.values()], keep)
        for name in () if dry_run else names:
            self._files.remove(name)
        return [by_name[name] for name in names]

    def find(self, name: str) -> Checkpoint | None:
        """The checkpoint in the folder of that name; None where there is none."""
        # What is listed anew is not told from a cache.
        return self._look(name) if name in self._files.names() else None

    def lock(self) -> Lock | None:
        """Keep other trainings without a coordinator from saving here.

        Returns:
            The lock, to be closed; None where the place has no locks.

        Raises:
            UsageError: another training has the lock.
        """
        try:
            return self._files.lock()
        except BlockingIOError as error:
            raise UsageError(
                f"another training saves its checkpoints to {self.url}. Give this one another"
                " --checkpoint; or start both with the same --redis, as nodes of one job"
            ) from error

    def _found(self, saved: Checkpoint) -> Sequence[StoredCheckpoint]:
        """All checkpoints as the scheduler sees them, behind the save of `saved`.

        Of a training that was restored from an older checkpoint because a newer one is damaged, the
        newer one may look whole: it is verified before it pushes anything out.
        """
        listed = [one for one in self.list() if one.name != saved.name]
        for one in listed:
            newer = one.step > saved.step or one.sequence > saved.sequence
            if newer and one.valid:
                self._is_whole(one)
        listed = [one for one in self.list() if one.name != saved.name]
        return [self._as_found(one, saved) for one in [saved, *listed]]

    def _as_found(self, one: Checkpoint, saved: Checkpoint | None = None) -> StoredCheckpoint:
        """As the scheduler sees it, behind the save of `saved`, if any."""
        if saved is not None and saved.sequence:
            pending = one.generation == saved.generation and one.step > saved.step
        else:  # whoever writes it may still be alive
            pending = time.time() - (begun_s(one.name) or 0) < LEFTOVER_S
        return StoredCheckpoint(
            one.name,
            one.step,
            one.made_s,
            one.valid,
            one.sequence,
            pending and not one.counts,
        )

    def _clear_behind(self, saved: Checkpoint, served: Callable[[], Sequence[str]]) -> None:
        """Remove what has served now that `saved` is there, which stays in any case."""
        try:
            for name in served():
                if name != saved.name:
                    self._files.remove(name)
        except EdlError as error:
            log.warning("old checkpoints stay: %s", error)

    def _is_whole(self, checkpoint: Checkpoint) -> bool:
        try:
            self.verify(checkpoint)
        except CheckpointDamaged:
            return False
        return True

    def _look(self, name: str) -> Checkpoint | None:
        return inspect(self._files, name, self._damaged.get(name, ""))

    @contextlib.contextmanager
    def _blamed(self, checkpoint: Checkpoint) -> Iterator[None]:
        """Name the checkpoint in what is raised, and remember that it is damaged."""
        try:
            yield
        except (CheckpointDamaged, FileNotFoundError) as error:
            gone = isinstance(error, FileNotFoundError)
            why = f"{MANIFEST} is missing" if gone else str(error)
            self._damaged[checkpoint.name] = why
            raise CheckpointDamaged(
                f"the checkpoint {checkpoint.location} is damaged: {why}"
            ) from error


def open_checkpoint(location: str) -> Contents:
    """Load a checkpoint.

    Args:
        location: path or URL of one (`Checkpoint.location`); of a repository, then its newest valid
            one is taken; or `SnapshotOwner.location`, then the newest snapshot in memory is.

    Returns:
        Contents with memory of their own.

    Raises:
        UsageError: there is none.
        CheckpointDamaged: it was named itself, and is damaged.
        CheckpointUnavailable: the place cannot be read now.
    """
    if descriptor_of(location.partition(",")[0]) is not None:
        return _from_memory(location.split(","))
    repository, checkpoint = located(location)
    checkpoint = checkpoint or repository.newest_valid()
    if checkpoint is None:
        raise UsageError(f"there is no checkpoint at {location}")
    return repository.load(checkpoint)


def located(location: str) -> tuple[Repository, Checkpoint | None]:
    """The repository that a path or URL names, and the checkpoint in it, if it names one.

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


def _from_memory(keys: list[str]) -> Contents:
    slots = open_slots(keys)
    try:
        with newest_of(slots) as found:
            if found is None:
                raise UsageError("there is no snapshot in the memory of this node")
            return found[1].copied()
    finally:
        for slot in slots:
            slot.close()

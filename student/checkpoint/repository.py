"""A place with the checkpoints of one training: the newest that is whole can always be had.

```
PLACE/step-000000000100/model.safetensors      the arrays, a file for each group
                        optimizer.safetensors
                        state.json             everything else
                        MANIFEST.json          lengths and checksums of these; written last
```

What has no manifest is no checkpoint. What does not agree with it is damaged: it is passed over
with a warning, and the one before it is taken.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ...errors import CheckpointDamaged, EdlError, UsageError
from ...scheduler.students.saving import Found, newest_first, to_prune
from . import checked
from .contents import Contents
from .files import Files, open_files
from .manifest import MANIFEST, Manifest
from .names import MOST_STEPS, step_of

log = logging.getLogger(__name__)

DEFAULT_KEEP: Final = 3


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One that lies in a repository.

    Attributes:
        name: of its folder.
        location: its path or URL, which `open_checkpoint` takes on any host that reaches it.
        step: steps of the optimizer that were done.
        world: ranks that trained; 0 where its manifest is damaged.
        made_s: when it was written, seconds since the epoch; 0 as above.
        nbytes: of all its files; 0 as above.
        problem: what is wrong with it, as far as was looked; empty: nothing.
    """

    name: str
    location: str
    step: int
    world: int = 0
    made_s: float = 0.0
    nbytes: int = 0
    problem: str = ""

    @property
    def found(self) -> Found:
        """As the scheduler sees it."""
        return Found(self.name, self.step, self.made_s, not self.problem)


class Repository:
    """See the module. One thread at a time; any number of processes.

    Args:
        url: a folder, or a URL of fsspec (s3://, gs://, hdfs://, ...).
        keep: whole checkpoints that a save leaves.

    Raises:
        UsageError: `keep` is below 1, or the URL cannot be opened by what is installed.
    """

    def __init__(self, url: str, keep: int = DEFAULT_KEEP) -> None:
        if keep < 1:
            raise UsageError(f"at least one checkpoint is kept, not {keep}")
        self._files: Files = open_files(url)
        self._keep = keep
        #: What this process found damaged, by name: it must not push a whole one out.
        self._damaged: dict[str, str] = {}

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
        if contents.step >= MOST_STEPS:
            raise UsageError(f"step {contents.step} is beyond what a checkpoint's name holds")
        self._files.tidy()
        draft = self._files.draft(contents.step, contents.nbytes)
        try:
            manifest = checked.write(draft, contents)
            name = draft.commit(manifest.pack())
        except BaseException:
            draft.abort()
            raise
        saved = self._checkpoint(name, manifest)
        try:
            self._clear_behind(saved)
        except EdlError as error:
            log.warning("old checkpoints stay: %s", error)
        return saved

    def list(self) -> Sequence[Checkpoint]:
        """All checkpoints, the newest first; only manifests and lengths of files are looked at.

        Raises:
            CheckpointUnavailable: the place cannot be read now.
        """
        by_name = {one.name: one for name in self._files.names() if (one := self._look(name))}
        return [by_name[found.name] for found in newest_first([c.found for c in by_name.values()])]

    def newest_valid(self) -> Checkpoint | None:
        """The newest one of which every byte is as it was written; None where there is none.

        Damaged ones are passed over, with a warning that names file and reason; one for each.

        Raises:
            CheckpointUnavailable: the place cannot be read now.
        """
        passed: set[str] = set()
        while left := [one for one in self.list() if one.name not in passed]:
            checkpoint = left[0]
            passed.add(checkpoint.name)
            if checkpoint.name in self._damaged:  # said before
                continue
            try:
                self.verify(checkpoint)
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
            checked.verify(self._files, checkpoint.name, self._manifest(checkpoint.name))

    def load(self, checkpoint: Checkpoint) -> Contents:
        """What it holds, in memory of its own; every byte is verified on the way.

        Raises:
            CheckpointDamaged: a file is missing, of another length, or fails its checksum.
            CheckpointUnavailable: the place cannot be read now.
        """
        with self._blamed(checkpoint):
            return checked.read(self._files, checkpoint.name, self._manifest(checkpoint.name))

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
            if whole < keep and not one.problem:
                whole += self._is_whole(one)
        gone = self._to_prune(keep)
        for one in () if dry_run else gone:
            self._files.remove(one.name)
        return gone

    def find(self, name: str) -> Checkpoint | None:
        """The checkpoint in the folder of that name; None where there is none."""
        return None if step_of(name) is None else self._look(name)

    def _clear_behind(self, saved: Checkpoint) -> None:
        """Remove what has served now that `saved` is there, which stays in any case.

        Of a training that was restored from an older checkpoint because a newer one is damaged, the
        newer one may look whole: it is verified before it pushes anything out.
        """
        for one in self.list():
            if one.found.order > saved.found.order and not one.problem:
                self._is_whole(one)
        for one in self._to_prune(self._keep):
            if one.name != saved.name:
                self._files.remove(one.name)

    def _is_whole(self, checkpoint: Checkpoint) -> bool:
        try:
            self.verify(checkpoint)
        except CheckpointDamaged:
            return False
        return True

    def _to_prune(self, keep: int) -> Sequence[Checkpoint]:
        by_name = {one.name: one for one in self.list()}
        return [by_name[name] for name in to_prune([one.found for one in by_name.values()], keep)]

    def _look(self, name: str) -> Checkpoint | None:
        """What its manifest and the lengths of its files say; None: it is no checkpoint."""
        try:
            manifest = self._manifest(name)
        except CheckpointDamaged as error:
            step = step_of(name)
            assert step is not None  # `names` has seen to it
            return Checkpoint(name, self._files.location(name), step, problem=str(error))
        except FileNotFoundError:
            return None
        problem = self._damaged.get(name, "")
        for file, told in manifest.files.items():
            nbytes = self._files.size(name, file)
            if nbytes is None:
                problem = problem or f"{file} is missing"
            elif nbytes != told.nbytes:
                problem = problem or f"{file} has {nbytes} bytes, not {told.nbytes}"
        if problem and self._files.size(name, MANIFEST) is None:
            return None  # somebody has pruned it meanwhile
        return self._checkpoint(name, manifest, problem)

    def _manifest(self, name: str) -> Manifest:
        with self._files.reading(name, MANIFEST) as file:
            manifest = Manifest.unpack(file.read())
        if manifest.step != step_of(name):
            raise CheckpointDamaged(f"{MANIFEST} is of step {manifest.step}")
        return manifest

    def _checkpoint(self, name: str, manifest: Manifest, problem: str = "") -> Checkpoint:
        return Checkpoint(
            name,
            self._files.location(name),
            manifest.step,
            manifest.world,
            manifest.made_s,
            manifest.nbytes,
            problem,
        )

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

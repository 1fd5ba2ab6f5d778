"""What a node keeps of its ranks' training: snapshots in its memory, checkpoints on the disk.

Ranks copy into memory that belongs to the supervisor and outlives them; a thread writes the newest
copy, so that training waits for no disk. Of a world one node writes, the first; another one does
where the first is gone and the next generation begins with what the other one has.
"""

from __future__ import annotations

import shutil
import tempfile
from typing import Final

from ...errors import CheckpointUnavailable
from ..checkpoint import Checkpoint, Repository, SnapshotOwner
from ..checkpoint.persisting import LAST_S, Persister
from .judging import Judge

#: A write that is void is not waited for longer: others wait for this node to begin.
_VOID_S: Final = 2.0
_FOLDER: Final = "edl-student-"


class Keeping:
    """See the module.

    Args:
        url: folder or fsspec URL of the checkpoints; None: a temporary folder, gone at the end.
        keep: checkpoints that a save leaves.

    Raises:
        UsageError: the URL cannot be opened by what is installed.
    """

    def __init__(self, url: str | None, keep: int) -> None:
        self._own = None if url else tempfile.mkdtemp(prefix=_FOLDER)
        self._url, self._keep = url or str(self._own), keep
        # One for each thread: the supervisor's, the judge's; the persister has a third.
        self._finding = Repository(self._url, keep)
        self.judge = Judge(Repository(self._url, keep))
        self._open()

    def _open(self) -> None:
        self._owner = SnapshotOwner()
        self._persister = Persister(self._owner, Repository(self._url, self._keep))
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

    def begin(self, restored: int) -> None:
        """A generation begins at step `restored`: a newer snapshot is of a past that is void."""
        if self.snapshot > restored:
            self._end_writing(_VOID_S)
            self._open()

    def newest_in_words(self) -> str:
        """Which checkpoint the disk has, for the message that another one is not there."""
        try:
            whole = next((one for one in self._finding.list() if not one.problem), None)
        except CheckpointUnavailable as error:
            return f"not known: {error}"
        return "none" if whole is None else f"that of step {whole.step}"

    def find(self, step: int) -> Checkpoint | None:
        """The checkpoint of this step on the disk; None: it is not there (yet).

        Raises:
            CheckpointUnavailable: the place cannot be read now.
        """
        whole = [one for one in self._finding.list() if one.step == step and not one.problem]
        return whole[0] if whole else None

    def write(self) -> None:
        """Have the newest snapshot written soon, unless it is on the disk."""
        self._persister.wake()

    def written(self) -> bool:
        """Whether there is no snapshot that is newer than what this node has written."""
        return self.snapshot <= self.saved

    def close(self) -> None:
        """End the writing, and give memory and temporary folder back."""
        self._end_writing(LAST_S)
        if self._own:
            shutil.rmtree(self._own, ignore_errors=True)

    def _end_writing(self, timeout_s: float) -> None:
        """Give the memory back; a disk that hangs has it until it, or this process, ends."""
        if self._persister.stop(timeout_s, last=False):
            self._owner.close()

"""Which checkpoint the next generation may begin with: the newest one of which every byte is right.

To read it all may take longer than a node's lease lives, so a thread of its own does. It is read
anew for each generation: the disk may have spoiled what was whole for the one before.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from ...scheduler.students.saving import CheckpointEntry, CheckpointHistory
from ..checkpoint import Checkpoint, Repository

#: What is small is waited for.
PATIENCE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Newest:
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


class Judge:
    """Used by one thread.

    Args:
        repository: where they are; used by the judge alone.
        patience_s: see `PATIENCE_S`.
    """

    def __init__(self, repository: Repository, patience_s: float = PATIENCE_S) -> None:
        self._repository, self._patience_s = repository, patience_s
        self._look: _Look | None = None

    def newest(self, generation: int, history: CheckpointHistory) -> Newest | None:
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
        return Newest(look.found, history)


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
            target=self._run, args=(repository,), name="edl-checkpoint-judge", daemon=True
        ).start()

    def _run(self, repository: Repository) -> None:
        generation, history = self.asked
        try:
            self.found = repository.newest_of(history, generation or None, self.found)
        except Exception as error:
            self.error = error
        finally:
            self.over.set()

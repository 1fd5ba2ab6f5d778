"""Which checkpoint the next generation may begin with: the newest one of which every byte is right.

To read it all may take longer than a node's lease lives, so a thread of its own does. It is read
anew for each generation: the disk may have spoiled what was whole for the one before.
"""

from __future__ import annotations

import threading
from typing import Final

from ..checkpoint import Checkpoint, Repository

#: What is small is waited for.
PATIENCE_S: Final = 0.5


class Judge:
    """Used by one thread.

    Args:
        repository: where they are; used by the judge alone.
        patience_s: see `PATIENCE_S`.
    """

    def __init__(self, repository: Repository, patience_s: float = PATIENCE_S) -> None:
        self._repository, self._patience_s = repository, patience_s
        self._look: _Look | None = None

    def newest(self, generation: int) -> int | None:
        """Step of the newest valid checkpoint; 0: there is none; None: it is being read.

        Args:
            generation: that has ended; what was read for another one does not count.

        Raises:
            CheckpointUnavailable: the place cannot be read now.
        """
        look = self._look
        if look is None or (look.over.is_set() and (look.taken or look.generation != generation)):
            known = look.found if look and look.generation == generation else None
            look = self._look = _Look(self._repository, generation, known)
        if not look.over.wait(self._patience_s) or look.generation != generation:
            return None
        look.taken = True
        if look.error is not None:
            raise look.error
        return 0 if look.found is None else look.found.step


class _Look:
    """One look at the place, in a thread; `known`: need not be read again if it is the newest."""

    def __init__(self, repository: Repository, generation: int, known: Checkpoint | None) -> None:
        self.generation = generation
        self.found = known
        self.error: Exception | None = None
        self.over = threading.Event()
        self.taken = False
        threading.Thread(
            target=self._run, args=(repository,), name="edl-checkpoint-judge", daemon=True
        ).start()

    def _run(self, repository: Repository) -> None:
        try:
            whole = next((one for one in repository.list() if not one.problem), None)
            if self.found is None or whole is None or whole.name != self.found.name:
                self.found = repository.newest_valid()
        except Exception as error:
            self.error = error
        finally:
            self.over.set()

"""The file in which a reader remembers the times of one service and job for its next start.

A file for each, so that readers that write at the same time do not undo each other's work; those of
one job write nearly the same, and the last one stays. It is replaced as a whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from ...scheduler.profiles import Profile, facts_of, profile_of

#: What is longer was written by somebody else.
MOST_BYTES = 4096


class ProfileFile:
    """The profile of one service and job.

    Args:
        folder: where profiles lie; it is made where there is none.
        service: of the teachers.
        job: of the training.

    Attributes:
        path: of the file.
    """

    def __init__(self, folder: str | Path, service: str, job: str) -> None:
        self._names = {"service": service, "job": job}
        key = hashlib.sha256(json.dumps([service, job]).encode()).hexdigest()[:32]
        self.path = Path(folder) / f"{key}.json"

    def read(self) -> Profile | None:
        """What is remembered; None where there is nothing, or something else than a profile.

        Raises:
            OSError: it is there and cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                told = json.loads(file.read(MOST_BYTES))
        except (FileNotFoundError, ValueError):
            return None
        if not isinstance(told, dict) or not self._names.items() <= told.items():
            return None
        return profile_of(told)

    def write(self, profile: Profile) -> None:
        """Remember this from now on.

        Raises:
            OSError: it cannot be written.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(".new", self.path.stem, self.path.parent)
        try:
            with os.fdopen(fd, "w") as file:
                json.dump({**self._names, **facts_of(profile)}, file)
            os.replace(name, self.path)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise

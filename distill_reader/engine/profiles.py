"""What a reader remembers of the last run, kept in a file, read and written in a thread.

What counts of it, and when it is written, is `scheduler.stream_stats`'. No failure is one of the
training: without a memory it learns as it did the first time.

Each service and job has a file of its own, so that readers that write at the same time do not undo
each other's work; those of one job write nearly the same, and the last one stays. It is replaced as
a whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from ...scheduler import stream_stats
from ...scheduler.stream_stats import Measured, Profile, facts_of, profile_of
from ..config import ReaderConfig
from .inbox import Inbox

log = logging.getLogger(__name__)

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


LOOK_EVERY_S: Final = 5.0
_END_S: Final = 1.0


class Remembering:
    """The memory of one member, from `start` to `close`. Used by the engine's thread alone.

    Args:
        config: of the member; it may name no folder, and then nothing is remembered.
        inbox: of the engine's thread.
        measured: says what is known by now of teachers that serve a content.
        remembered: hears what was remembered; None: nothing.
    """

    def __init__(
        self,
        config: ReaderConfig,
        inbox: Inbox,
        measured: Callable[[str], Measured],
        remembered: Callable[[Profile | None], None],
    ) -> None:
        self._file: ProfileFile | None = None
        if config.profiles:
            self._file = ProfileFile(config.profiles, config.service, config.job)
        self._inbox = inbox
        self._measured = measured
        self._on_remembered = remembered
        self._saved: Profile | None = None
        self._looks_at = inf  # until it has been read
        self._told: SimpleQueue[Profile | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Read what the last run has left."""
        if self._file is not None:
            work = partial(self._work, self._file)
            self._thread = threading.Thread(target=work, name="edl-profile", daemon=True)
            self._thread.start()

    def look(self, content_id: str, now: float) -> None:
        """Time goes by, with teachers of this content: write what is worth it."""
        if now < self._looks_at:
            return
        self._looks_at = now + LOOK_EVERY_S
        measured = self._measured(content_id)
        new = stream_stats.to_save(self._saved, measured, time.time())
        if new is not None:
            self._saved = new
            self._told.put(new)

    def close(self, content_id: str) -> None:
        """Write what is worth it in the end; bounded."""
        if self._thread is not None:
            if self._looks_at < inf:
                self.look(content_id, self._looks_at)
            self._told.put(None)
            self._thread.join(_END_S)

    def _remembered(self, profile: Profile | None) -> None:
        self._saved = profile
        self._on_remembered(profile)
        self._looks_at = 0.0
        if profile is not None:
            log.info("the last run of this job needed %d teachers", profile.needed)

    def _work(self, file: ProfileFile) -> None:
        try:
            self._inbox.post(self._remembered, file.read())
            while (profile := self._told.get()) is not None:
                file.write(profile)
        except OSError as error:
            log.warning("the times of this run are not remembered for the next: %s", error)

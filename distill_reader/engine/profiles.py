"""The profile of a job: a file with measured times, with which the job's next run starts.

`scheduler.stream_stats` decides what is saved and when. Without a readable profile, a training
starts like a first run.

Each service and job has its own file, so that different jobs do not overwrite each other's files.
The readers of a job share the file of a service: they measure nearly the same, and the last write
wins. Files are replaced atomically.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from ...runtime.errors import UsageError
from ...runtime.files import replacing
from ...scheduler import stream_stats
from ...scheduler.stream_stats import Measured, StreamProfile, facts_of, profile_of
from ..config import ReaderConfig
from .inbox import Inbox

log = logging.getLogger(__name__)

#: Maximum number of bytes that are read of a profile.
MOST_BYTES = 4096


class ProfileFile:
    """The profile of one service and job.

    Args:
        folder: folder of profiles; created when the first one is written.
        service: name of the teachers' service.
        job: name of the training.

    Attributes:
        path: path of the file.
    """

    def __init__(self, folder: str | Path, service: str, job: str) -> None:
        self._names = {"service": service, "job": job}
        key = hashlib.sha256(json.dumps([service, job]).encode()).hexdigest()[:32]
        self.path = Path(folder) / f"{key}.json"

    def read(self) -> StreamProfile | None:
        """Return the saved profile; None: missing, or not a profile.

        Raises:
            OSError: the file cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                content = json.loads(file.read(MOST_BYTES))
        except (FileNotFoundError, ValueError):
            return None
        if not isinstance(content, dict) or not self._names.items() <= content.items():
            return None
        return profile_of(content)

    def write(self, profile: StreamProfile) -> None:
        """Replace the saved profile.

        Raises:
            UsageError: the file cannot be written.
        """
        with replacing(self.path) as part:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            part.write_text(json.dumps({**self._names, **facts_of(profile)}))


SAVE_EVERY_S: Final = 5.0
#: Maximum number of seconds that `ProfileRecorder.close` waits.
_CLOSE_TIMEOUT_S: Final = 1.0


class ProfileRecorder:
    """Loads and saves the profile of one service of a reader. For the engine's thread.

    Args:
        config: settings for this service; without a folder of profiles, nothing is loaded or saved.
        inbox: inbox of the engine's thread.
        measured: returns the current measurements.
        on_loaded: receives the profile; None: there is no valid one. Not called if the file cannot
            be read.
    """

    def __init__(
        self,
        config: ReaderConfig,
        inbox: Inbox,
        measured: Callable[[], Measured],
        on_loaded: Callable[[StreamProfile | None], None],
    ) -> None:
        self._file: ProfileFile | None = None
        if config.profiles:
            self._file = ProfileFile(config.profiles, config.service, config.job)
        self._inbox = inbox
        self._measured = measured
        self._on_loaded = on_loaded
        self._saved: StreamProfile | None = None
        self._check_at = inf  # time of the next check; infinite until the profile is loaded
        self._to_write: SimpleQueue[StreamProfile | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Load the profile of the last run in a thread."""
        if self._file is not None:
            work = partial(self._work, self._file)
            self._thread = threading.Thread(target=work, name="edl-profile", daemon=True)
            self._thread.start()

    def save_if_due(self, now: float) -> None:
        """Save the profile if it has changed or is old; checked once in `SAVE_EVERY_S` at most."""
        if now < self._check_at:
            return
        self._check_at = now + SAVE_EVERY_S
        new = stream_stats.to_save(self._saved, self._measured(), time.time())
        if new is not None:
            self._saved = new
            self._to_write.put(new)

    def close(self) -> None:
        """Save the profile if it has changed or is old; waits for a second at most."""
        if self._thread is not None:
            if self._check_at < inf:
                self.save_if_due(self._check_at)
            self._to_write.put(None)
            self._thread.join(_CLOSE_TIMEOUT_S)

    def _loaded(self, profile: StreamProfile | None) -> None:
        self._saved = profile
        self._on_loaded(profile)
        self._check_at = 0.0
        if profile is not None:
            log.info("the last run of this job needed %d teachers", profile.needed)

    def _work(self, file: ProfileFile) -> None:
        try:
            self._inbox.post(self._loaded, file.read())
            while (profile := self._to_write.get()) is not None:
                file.write(profile)
        except (OSError, UsageError) as error:
            log.warning("the profile of this job cannot be read or saved: %s", error)

"""Cache of models on this machine: downloaded by URL, stored atomically, checked by content."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final

from ...coordinator.machines import Deployment
from ...runtime.errors import ContentMismatch, ModelError, ModelUnavailable, UsageError
from .download import download

#: Share of the free disk space that a model may take.
_ROOM: Final = 0.95
#: Seconds after its last use during which a model is not removed.
_RECENT_S: Final = 3600.0


class ModelCache:
    """A folder of models, each in a folder named by its content_id. Several agents may share it.

    Args:
        folder: the agents' cache folder; models are in its subfolder `models`.
        most_bytes: size limit; the least recently used models are removed above it. None: no limit.

    Raises:
        UsageError: the folder cannot be written, or other users may write to it.
    """

    def __init__(self, folder: Path, most_bytes: int | None = None) -> None:
        self._folder = folder / "models"
        self._most_bytes = most_bytes
        self._parts = count()
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = self._folder.stat()
        except OSError as error:
            raise UsageError(
                f"models cannot be kept in {folder}: {error.strerror}; name a folder by --cache"
            ) from None
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise UsageError(
                f"other users may write to {self._folder} and could change a model after its"
                " check: use a folder of your own with --cache"
            )
        self._remove_leftovers()

    def contents(self) -> tuple[str, ...]:
        """Return the content_id of each model, sorted."""
        with contextlib.suppress(OSError):
            names = [entry.name for entry in self._folder.iterdir()]
            return tuple(sorted(name for name in names if not name.startswith(".")))
        return ()

    def fetch(
        self, deployment: Deployment, check: Callable[[], None], say: Callable[[str], None]
    ) -> Path:
        """Return the model of a deployment; download it if needed, and check its content.

        Args:
            deployment: the deployment.
            check: called every 0.1 s; an exception from it aborts the download.
            say: called with a line about the progress, in any thread.

        Returns:
            A folder that contains only this model.

        Raises:
            ContentMismatch: the model at the URL has another content_id.
            ModelError: the URL has no model.
            ModelUnavailable: the model cannot be downloaded now, or there is no room for it.
            UsageError: the URL needs a library that is not installed.
        """
        folder = self._folder / deployment.content_id
        if folder.is_dir():
            with contextlib.suppress(ModelError):
                self._verify(folder, deployment)
                os.utime(folder)
                return folder
            say(f"the cached model {folder} has changed: downloading it again")
            shutil.rmtree(folder, ignore_errors=True)
        # A new name each time: an aborted download may still write for a moment.
        part = self._folder / f".part-{os.getpid()}-{next(self._parts)}"
        try:
            download(deployment.model_url, part, self._room(), check, say)
            self._verify(part, deployment)
            self._keep(part, folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        self._prune(folder)
        return folder

    def _verify(self, folder: Path, deployment: Deployment) -> None:
        """Check the content before any program opens the model, as a model may be malicious."""
        from ...teacher.backends.selection import content_of

        steps = [value for name, value in deployment.options if name == "preprocess"]
        found = content_of(str(folder), steps)
        if found != deployment.content_id:
            raise ContentMismatch(
                f"the model at {deployment.model_url} has content {found}, and service "
                f"{deployment.service} is deployed with {deployment.content_id}: it is not served. "
                "Put the declared model there, or deploy the service with what "
                "'edl teacher fingerprint' prints"
            )

    def _room(self) -> int:
        """Return the bytes that a model may take."""
        free = int(shutil.disk_usage(self._folder).free * _ROOM)
        return free if self._most_bytes is None else min(free, self._most_bytes)

    def _keep(self, part: Path, folder: Path) -> None:
        try:
            part.rename(folder)
        except OSError as error:
            if not folder.is_dir():  # otherwise another agent has stored the model meanwhile
                raise ModelUnavailable(f"{folder} cannot be made: {error.strerror}") from None

    def _prune(self, keep: Path) -> None:
        """Remove the least recently used models above the limit, except `keep` and recent ones."""
        if self._most_bytes is None:
            return
        with contextlib.suppress(OSError):
            models = sorted(
                (entry for entry in self._folder.iterdir() if not entry.name.startswith(".")),
                key=lambda entry: entry.stat().st_mtime,
            )
            sizes = {
                entry: sum(file.stat().st_size for file in entry.rglob("*") if file.is_file())
                for entry in models
            }
            for entry in models:
                recent = time.time() - entry.stat().st_mtime < _RECENT_S
                if sum(sizes.values()) <= self._most_bytes or entry == keep or recent:
                    continue
                shutil.rmtree(entry, ignore_errors=True)
                del sizes[entry]

    def _remove_leftovers(self) -> None:
        """Remove partial downloads of agents that were killed."""
        with contextlib.suppress(OSError):
            for entry in self._folder.glob(".part-*"):
                owner = entry.name.split("-")[1]
                if owner.isdigit() and not Path(f"/proc/{owner}").exists():
                    shutil.rmtree(entry, ignore_errors=True)

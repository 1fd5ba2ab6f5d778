"""Models on this machine: fetched by their URL, kept whole or not at all, never another content."""

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
from ...errors import ContentMismatch, ModelError, ModelUnavailable, UsageError
from .download import download

#: Of the free room, what a model may take.
_ROOM: Final = 0.95
#: A model that was used so lately is not removed to make room.
_LATELY_S: Final = 3600.0


class Cache:
    """A folder of models, each in a folder named by its content. Several agents may share it.

    Args:
        folder: where they lie.
        most_bytes: they are kept up to so many, those used last; None: all are kept.
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
                f"others may write to {self._folder}, and so change a model after it was looked "
                "at: name a folder of your own by --cache"
            )
        self._tidy()

    def contents(self) -> tuple[str, ...]:
        """Of the models that are there."""
        with contextlib.suppress(OSError):
            names = [entry.name for entry in self._folder.iterdir()]
            return tuple(sorted(name for name in names if not name.startswith(".")))
        return ()

    def fetch(
        self, deployment: Deployment, check: Callable[[], None], tell: Callable[[str], None]
    ) -> Path:
        """The model of a deployment, whose content was looked at just now.

        Args:
            deployment: which.
            check: called often; what it raises ends the fetching.
            tell: given a line on what is being done.

        Returns:
            A folder that holds this model and nothing else.

        Raises:
            ContentMismatch: what lies at the URL is something else.
            ModelError: no model lies there.
            ModelUnavailable: it cannot be had now, or there is no room for it.
            UsageError: the URL needs something that is not installed.
        """
        place = self._folder / deployment.content_id
        if place.is_dir():
            with contextlib.suppress(ModelError):
                self._verify(place, deployment)
                os.utime(place)
                return place
            tell(f"{place} is not what it was: fetching it again")
            shutil.rmtree(place, ignore_errors=True)
        # Never used again: one that was given up may be written to for a moment yet.
        part = self._folder / f".part-{os.getpid()}-{next(self._parts)}"
        try:
            download(deployment.model_url, part, self._room(), check, tell)
            self._verify(part, deployment)
            self._keep(part, place)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        self._prune(place)
        return place

    def _verify(self, folder: Path, deployment: Deployment) -> None:
        """Before anything opens it: a program that reads a model may be led astray by another."""
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
        """Bytes that a model may take: of the disk, and of what agents may keep."""
        free = int(shutil.disk_usage(self._folder).free * _ROOM)
        return free if self._most_bytes is None else min(free, self._most_bytes)

    def _keep(self, part: Path, place: Path) -> None:
        try:
            part.rename(place)
        except OSError as error:
            if not place.is_dir():  # else another agent has put the same there meanwhile
                raise ModelUnavailable(f"{place} cannot be made: {error.strerror}") from None

    def _prune(self, keep: Path) -> None:
        """Remove what was used longest ago, while there is too much."""
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
                recent = time.time() - entry.stat().st_mtime < _LATELY_S
                if sum(sizes.values()) <= self._most_bytes or entry == keep or recent:
                    continue
                shutil.rmtree(entry, ignore_errors=True)
                del sizes[entry]

    def _tidy(self) -> None:
        """Remove what agents have left that were killed."""
        with contextlib.suppress(OSError):
            for entry in self._folder.glob(".part-*"):
                owner = entry.name.split("-")[1]
                if owner.isdigit() and not Path(f"/proc/{owner}").exists():
                    shutil.rmtree(entry, ignore_errors=True)

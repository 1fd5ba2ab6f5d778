"""Checkpoints at a URL of fsspec: s3, gs, hdfs and all others.

Object stores cannot rename folders. So each save writes to a folder with a unique name. The folder
becomes a checkpoint by its manifest, the last file of a save, which is removed first. Afterwards
any node may add `JOINED` to it (`Repository.mark`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, BinaryIO, Final

from ...runtime.errors import UsageError
from ...runtime.extras import install_command
from .checkpoint import MANIFEST
from .storage import (
    CLAIM,
    LEFTOVER_S,
    Draft,
    FileDigest,
    Piece,
    begun_s,
    raise_unavailable,
    step_of,
    token,
    unique_name_of,
    write_pieces,
)

#: Libraries behind fsspec raise exceptions of their own types.
_translated: Final = partial(raise_unavailable, kind=Exception)
#: If a path has these characters, fsspec moves and removes all files that match it as a pattern.
_PATTERNS: Final = frozenset("*?[")


class FsspecStorage:
    """See `Storage`."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise UsageError(
                f"{url} needs fsspec, which is not installed: {install_command('fs')}"
            ) from error
        self.url = url.rstrip("/")
        if self.url.endswith(":"):  # without its slashes, fsspec would take it for a local folder
            raise UsageError(f"checkpoints cannot lie at {url}: it names no folder")
        with _translated(f"cannot open {url}"):
            try:
                self._fs, root = fsspec.core.url_to_fs(self.url)
            except (ValueError, ImportError) as error:  # no such protocol, or its library
                raise UsageError(f"checkpoints cannot lie at {url}: {error}") from error
        self._root = str(root).rstrip("/")
        if patterns := sorted(_PATTERNS.intersection(self._root)):
            raise UsageError(
                f"checkpoints cannot lie at {url}: fsspec would take {' and '.join(patterns)} for a"
                " pattern, and could remove other files. Give a path without these characters"
            )

    def names(self) -> list[str]:
        return [name for name in self._listed() if step_of(name) is not None]

    def draft(self, step: int, nbytes: int, name: str = "") -> Draft:
        return _FsspecDraft(self._fs, self._root, self.url, step, name)

    @contextlib.contextmanager
    def reading(self, name: str, file: str) -> Iterator[BinaryIO]:
        message = f"cannot read {self.url}/{name}/{file}"
        with (
            _translated(message, passes=FileNotFoundError),
            self._fs.open(f"{self._root}/{name}/{file}", "rb") as opened,
        ):
            yield opened

    def add(self, name: str, file: str, data: bytes) -> None:
        with _translated(f"cannot write {self.url}/{name}/{file}"):
            _put(self._fs, f"{self._root}/{name}/{file}", data)

    def size(self, name: str, file: str) -> int | None:
        message = f"cannot look at {self.url}/{name}/{file}"
        with _translated(message), contextlib.suppress(FileNotFoundError):
            return int(self._fs.info(f"{self._root}/{name}/{file}")["size"])
        return None

    def remove(self, name: str) -> None:
        with _translated(f"cannot remove {self.url}/{name}"):
            _remove(self._fs, f"{self._root}/{name}")

    def tidy(self) -> None:
        with contextlib.suppress(Exception):  # the next save tries again
            for name in self._listed():
                begun = begun_s(name)
                if begun is None or time.time() - begun < LEFTOVER_S:
                    continue
                # Not `exists`: in many file systems it is false after any error.
                if self.size(name, MANIFEST) is None:
                    _remove(self._fs, f"{self._root}/{name}")

    def claims(self) -> list[str]:
        return [name.removeprefix(CLAIM) for name in self._listed() if name.startswith(CLAIM)]

    def claim(self, job: str) -> None:
        with _translated(f"cannot write to {self.url}"):
            self._fs.makedirs(self._root, exist_ok=True)
            with self._fs.open(f"{self._root}/{CLAIM}{job}", "wb") as opened:
                opened.write(b"\n")  # some stores have no empty files

    def unclaim(self, job: str) -> None:
        with contextlib.suppress(Exception):
            self._fs.rm(f"{self._root}/{CLAIM}{job}")

    def lock(self, shared: bool) -> BinaryIO | None:
        return None

    def location(self, name: str) -> str:
        return f"{self.url}/{name}"

    def _listed(self) -> list[str]:
        paths: list[str] = []
        message = f"cannot look for checkpoints at {self.url}"
        with _translated(message), contextlib.suppress(FileNotFoundError):
            self._fs.invalidate_cache()  # other processes write here, too
            paths = self._fs.ls(self._root, detail=False)
        return [str(path).rstrip("/").rpartition("/")[2] for path in paths]


class _FsspecDraft:
    """See `Draft`."""

    def __init__(self, fs: Any, root: str, url: str, step: int, name: str) -> None:
        self._fs, self._step, self._url = fs, step, url
        self._name = name or unique_name_of(step)
        self._folder = f"{root}/{self._name}"
        with self._translated():
            fs.makedirs(self._folder, exist_ok=True)

    def write(self, file: str, pieces: Iterable[Piece]) -> FileDigest:
        with self._translated(), self._fs.open(f"{self._folder}/{file}", "wb") as opened:
            return write_pieces(pieces, opened.write)

    def commit(self, manifest: bytes) -> str:
        with self._translated():
            _put(self._fs, f"{self._folder}/{MANIFEST}", manifest)
        return self._name

    def abort(self) -> None:
        with contextlib.suppress(Exception):  # `tidy` removes the rest later
            _remove(self._fs, self._folder)

    def _translated(self) -> contextlib.AbstractContextManager[None]:
        return _translated(f"cannot write the checkpoint of step {self._step} to {self._url}")


def _put(fs: Any, path: str, data: bytes) -> None:
    """Write a file atomically: a partly written file would look damaged."""
    part_path = f"{path}.{token()}.part"  # other nodes may add the same file now
    with fs.open(part_path, "wb") as opened:
        opened.write(data)
    fs.mv(part_path, path)


def _remove(fs: Any, folder: str) -> None:
    """Remove a folder, its manifest first, so that remaining files do not count as a checkpoint."""
    with contextlib.suppress(FileNotFoundError):
        fs.rm(f"{folder}/{MANIFEST}")
    with contextlib.suppress(FileNotFoundError):
        fs.rm(folder, recursive=True)

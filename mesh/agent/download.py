"""Abortable download of a model's files from a URL, with a size limit."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from pathlib import Path, PurePosixPath
from typing import Any, Final

from ...coordinator.machines.schema import check_url
from ...runtime.errors import EdlError, ModelError, ModelUnavailable, UsageError
from ...runtime.extras import install_command

_BLOCK_BYTES: Final = 4 << 20
_MOST_FILES: Final = 10_000
#: Seconds without a byte after which a download from an HTTP server, or from any source, fails.
_SILENT_S: Final = 60
_STUCK_S: Final = 300.0
#: Seconds between calls of `check`.
_SLICE_S: Final = 0.1
#: Suffix of the file with the weights, by the suffix of a Paddle program.
_BESIDE: Final[Mapping[str, str]] = {".json": ".pdiparams", ".pdmodel": ".pdiparams"}


def download(
    url: str, into: Path, room: int, check: Callable[[], None], say: Callable[[str], None]
) -> None:
    """Download a model.

    The download runs in its own thread, so that a silent server cannot keep a machine from
    yielding.

    Args:
        url: URL of the model.
        into: folder to create. After an exception it may have partial files, and the thread
            removes it once it notices.
        room: size limit in bytes.
        check: called every 0.1 s; an exception from it aborts the download.
        say: called with a line about the download, in any thread.

    Raises:
        ModelError: the URL has no model.
        ModelUnavailable: the model cannot be downloaded now, or is larger than `room`.
        UsageError: the URL needs a library that is not installed.
    """
    work = _Work(url, into, room, say)
    threading.Thread(target=work.run, name="edl-fetch", daemon=True).start()
    try:
        while not wait([work.ended], _SLICE_S).done:
            check()
            if time.monotonic() - work.last_s > _STUCK_S:
                raise ModelUnavailable(
                    f"the model at {url} cannot be fetched now: nothing came for {_STUCK_S:g} s"
                )
        work.ended.result()
        check()
    except BaseException:
        work.given_up.set()
        raise


class _Work:
    """One download, in its thread.

    Attributes:
        ended: completes with the download.
        given_up: set when the download is aborted.
        last_s: monotonic time of the latest bytes.
    """

    def __init__(self, url: str, into: Path, room: int, say: Callable[[str], None]) -> None:
        self._url, self._into, self._room, self._say = url, into, room, say
        self.ended: Future[None] = Future()
        self.given_up = threading.Event()
        self.last_s = time.monotonic()

    def run(self) -> None:
        try:
            with _translated(self._url):
                self._fetch()
        except BaseException as error:
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)
        if self.given_up.is_set():
            shutil.rmtree(self._into, ignore_errors=True)

    def _fetch(self) -> None:
        fs, root = _opened(self._url)
        files = _files(fs, self._url, root)
        sizes = {path: _size(fs, path, self._url) for path in files.values()}
        known = sum(size or 0 for size in sizes.values())
        if known > self._room:
            raise ModelUnavailable(
                f"the model at {self._url} takes {known:,} bytes, and there is room for "
                f"{self._room:,} in {self._into.parent}: make room, raise gib= of --cache, or name "
                "another folder by --cache"
            )
        if not self.given_up.is_set():
            self._say(f"fetching {self._url}: {len(files)} files, {known:,} bytes")
        room = self._room
        for name, path in files.items():
            size = sizes[path]
            room -= self._copy(fs, path, self._into / name, room if size is None else size)

    def _copy(self, fs: Any, path: str, to: Path, most: int) -> int:
        """Copy a file; return its number of bytes."""
        to.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        count = 0
        with fs.open(path, "rb") as source, to.open("xb") as target:
            while block := source.read(_BLOCK_BYTES):
                if self.given_up.is_set():
                    raise InterruptedError
                self.last_s = time.monotonic()
                count += len(block)
                if count > most:
                    raise ModelUnavailable(
                        f"{path} is larger than its stated size, or than the free space in"
                        f" {self._into.parent} ({most:,} bytes)"
                    )
                target.write(block)
        return count


def _opened(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError:
        raise UsageError(
            f"a model at {url} needs fsspec, which is not installed: {install_command('fs')}"
        ) from None
    options: dict[str, Any] = {"skip_instance_cache": True}
    if check_url(url).startswith("http"):
        import aiohttp  # its default limit of five minutes per file is too short

        options["client_kwargs"] = {
            "timeout": aiohttp.ClientTimeout(total=None, sock_read=_SILENT_S)
        }
    fs, root = fsspec.core.url_to_fs(url, **options)
    return fs, str(root)


def _files(fs: Any, url: str, root: str) -> dict[str, str]:
    """Return the path of each file by its name within the model's folder."""
    if not url.startswith("http") and fs.isdir(root):
        base = root.rstrip("/") + "/"
        paths = [str(path) for path in fs.find(root)]
        if len(paths) > _MOST_FILES:
            raise ModelError(f"{url} holds {len(paths)} files, which is no model")
        return {_safe(path.removeprefix(base), url): path for path in sorted(paths)}
    bare, question, query = root.partition("?")
    name = PurePosixPath(bare).name
    found = {_safe(name, url): root}
    if beside := _BESIDE.get(PurePosixPath(name).suffix):
        second = str(PurePosixPath(name).with_suffix(beside))
        found[_safe(second, url)] = bare.removesuffix(name) + second + question + query
    return found


def _size(fs: Any, path: str, url: str) -> int | None:
    """Return the number of bytes of a file; None: unknown."""
    info = fs.info(path)
    if info.get("type") == "other":  # reading a pipe or a device may never end
        raise ModelError(f"{path} at {url} is no file")
    size = info.get("size")
    return None if size is None else int(size)


def _safe(name: str, url: str) -> str:
    """Return the name if it stays within its folder; raise ModelError otherwise."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ModelError(f"{url} has a file of the name {name!r:.200}, which is no model's")
    return name


@contextlib.contextmanager
def _translated(url: str) -> Iterator[None]:
    """Translate exceptions of fsspec and its libraries into EdlErrors."""
    try:
        yield
    except (EdlError, InterruptedError):
        raise
    except FileNotFoundError as error:
        cause = error.__cause__  # fsspec raises this error for unreachable HTTP servers too
        if isinstance(cause, FileNotFoundError | None) or getattr(cause, "status", 0) == 404:
            raise ModelError(f"there is no model at {url}") from None
        raise ModelUnavailable(f"the model at {url} cannot be fetched now: {cause}") from error
    except (ImportError, ValueError) as error:  # no such protocol, or its library
        raise UsageError(f"a model cannot be fetched from {url}: {error}") from error
    except Exception as error:
        said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ModelUnavailable(f"the model at {url} cannot be fetched now: {said}") from error

"""Cache of models on this machine: downloaded by URL, stored atomically, checked by content."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from pathlib import Path, PurePosixPath
from typing import Any, Final

from ...coordinator.machines import Deployment
from ...coordinator.machines.schema import check_url
from ...runtime.errors import ContentMismatch, EdlError, ModelError, ModelUnavailable, UsageError
from ...runtime.extras import install_command

_BLOCK_BYTES: Final = 4 << 20
_MAX_FILES: Final = 10_000
#: Seconds without a byte after which a download over HTTP fails.
_HTTP_SILENT_S: Final = 60
#: Seconds without a byte after which a download from any source is aborted.
_SILENT_S: Final = 300.0
#: Seconds between calls of `raise_if_cancelled`.
_CANCEL_POLL_S: Final = 0.1
#: Suffix of a Paddle model's file of weights, by the suffix of its program file.
_WEIGHTS_SUFFIXES: Final[Mapping[str, str]] = {".json": ".pdiparams", ".pdmodel": ".pdiparams"}


class _Download:
    """The download of a model, in its own thread.

    So a slow server does not delay the agent, for example when the owner wants the machine back.

    Args:
        url: URL of the model.
        into: folder for its files. If `wait` raises an exception, the thread removes the folder
            when it notices; until then partial files may remain.
        room_for: called with the model's size as far as known (some files may be of unknown size);
            returns the largest size that the model may have. Both in bytes.
        say: called with a line about the download, in the download's thread.
    """

    def __init__(
        self, url: str, into: Path, room_for: Callable[[int], int], say: Callable[[str], None]
    ) -> None:
        self._url, self._into, self._room_for, self._say = url, into, room_for, say
        self._result: Future[None] = Future()
        self._aborted = threading.Event()
        self._last_s = time.monotonic()  # time of the latest bytes
        threading.Thread(target=self._run, name="edl-fetch", daemon=True).start()

    def wait(self, raise_if_cancelled: Callable[[], None]) -> None:
        """Wait for the end; call `raise_if_cancelled` every 0.1 s, and abort if it raises.

        Raises:
            ModelError: the URL has no model.
            ModelUnavailable: the model cannot be downloaded now, or there is no room for it.
            UsageError: the URL's protocol is unknown, or needs a library that is not installed.
        """
        try:
            while not wait([self._result], _CANCEL_POLL_S).done:
                raise_if_cancelled()
                if time.monotonic() - self._last_s > _SILENT_S:
                    raise ModelUnavailable(
                        f"the model at {self._url} cannot be fetched now: no data arrived"
                        f" for {_SILENT_S:g} s"
                    )
            self._result.result()
            raise_if_cancelled()
        except BaseException:
            self._aborted.set()
            raise

    def _run(self) -> None:
        try:
            with _translated_errors(self._url):
                self._fetch()
        except BaseException as error:
            self._result.set_exception(error)
        else:
            self._result.set_result(None)
        if self._aborted.is_set():
            shutil.rmtree(self._into, ignore_errors=True)

    def _fetch(self) -> None:
        fs, root = _open_file_system(self._url)
        files = _model_files(fs, self._url, root)
        sizes = {path: _size(fs, path, self._url) for path in files.values()}
        known_bytes = sum(size or 0 for size in sizes.values())
        room = self._room_for(known_bytes)
        if known_bytes > room:
            raise ModelUnavailable(
                f"the model at {self._url} takes {known_bytes:,} bytes, and there is room for "
                f"{room:,} in {self._into.parent}: make room, raise gib= of --cache, or name "
                "another folder by --cache"
            )
        if not self._aborted.is_set():
            self._say(f"fetching {self._url}: {len(files)} files, {known_bytes:,} bytes")
        room -= known_bytes  # left for files of unknown size
        for name, path in files.items():
            size = sizes[path]
            copied = self._copy(fs, path, self._into / name, room if size is None else size)
            if size is None:
                room -= copied

    def _copy(self, fs: Any, path: str, to: Path, max_bytes: int) -> int:
        """Copy a file; return its number of bytes."""
        to.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        copied = 0
        with fs.open(path, "rb") as source, to.open("xb") as target:
            while block := source.read(_BLOCK_BYTES):
                if self._aborted.is_set():
                    raise InterruptedError
                self._last_s = time.monotonic()
                copied += len(block)
                if copied > max_bytes:
                    raise ModelUnavailable(
                        f"{path} is larger than its stated size, or than the room in"
                        f" {self._into.parent} ({max_bytes:,} bytes)"
                    )
                target.write(block)
        return copied


def _open_file_system(url: str) -> tuple[Any, str]:
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
            "timeout": aiohttp.ClientTimeout(total=None, sock_read=_HTTP_SILENT_S)
        }
    fs, root = fsspec.core.url_to_fs(url, **options)
    return fs, str(root)


def _model_files(fs: Any, url: str, root: str) -> dict[str, str]:
    """Return the path in `fs` of each file, by its name in the model's folder."""
    if not url.startswith("http") and fs.isdir(root):
        base = root.rstrip("/") + "/"
        paths = [str(path) for path in fs.find(root)]
        if len(paths) > _MAX_FILES:
            raise ModelError(f"{url} has {len(paths)} files: a model has at most {_MAX_FILES}")
        return {checked_name(path.removeprefix(base), url): path for path in sorted(paths)}
    bare, question, query = root.partition("?")
    name = PurePosixPath(bare).name
    files = {checked_name(name, url): root}
    if suffix := _WEIGHTS_SUFFIXES.get(PurePosixPath(name).suffix):
        weights = str(PurePosixPath(name).with_suffix(suffix))
        files[checked_name(weights, url)] = bare.removesuffix(name) + weights + question + query
    return files


def _size(fs: Any, path: str, url: str) -> int | None:
    """Return the number of bytes of a file; None: unknown."""
    info = fs.info(path)
    if info.get("type") == "other":  # reading a pipe or a device may never end
        raise ModelError(f"{path} at {url} is not a regular file")
    size = info.get("size")
    return None if size is None else int(size)


def checked_name(name: str, url: str) -> str:
    """Return the name unchanged. Raises ModelError if the path leaves the model's folder."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ModelError(f"{url} has a file with the unsafe name {name!r:.200}")
    return name


@contextlib.contextmanager
def _translated_errors(url: str) -> Iterator[None]:
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
    except (ImportError, ValueError) as error:  # unknown protocol, or its library is missing
        raise UsageError(f"a model cannot be fetched from {url}: {error}") from error
    except Exception as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ModelUnavailable(f"the model at {url} cannot be fetched now: {reason}") from error


#: Share of the free disk space that a model may take.
_FREE_SHARE: Final = 0.95
#: Seconds after its last use during which a model is not removed.
_RECENT_S: Final = 3600.0
#: Prefix of the name of a folder into which a model is downloaded.
_PART_PREFIX: Final = ".part-"


class ModelCache:
    """A folder of models, each in a folder named by its content_id. Several agents may share it.

    Args:
        folder: the agents' cache folder; models are in its subfolder `models`.
        most_bytes: size limit; above it, or if a download lacks room on the disk, models are
            removed, the least recently used first, but none that was used in the last hour. None:
            no limit.

    Raises:
        UsageError: the folder cannot be written, or other users may write to it.
    """

    def __init__(self, folder: Path, most_bytes: int | None = None) -> None:
        self._folder = folder / "models"
        self._most_bytes = most_bytes
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            info = self._folder.stat()
        except OSError as error:
            raise UsageError(
                f"models cannot be kept in {folder}: {error.strerror}; name a folder by --cache"
            ) from None
        if info.st_uid != os.geteuid() or info.st_mode & 0o022:
            raise UsageError(
                f"other users may write to {self._folder} and could change a model after its"
                " check: use a folder of your own with --cache"
            )
        self._remove_leftovers()

    def contents(self) -> tuple[str, ...]:
        """Return the content_id of each model, sorted; empty if the folder cannot be read."""
        with contextlib.suppress(OSError):
            names = [entry.name for entry in self._folder.iterdir()]
            return tuple(sorted(name for name in names if not name.startswith(".")))
        return ()

    def fetch(
        self,
        deployment: Deployment,
        raise_if_cancelled: Callable[[], None],
        say: Callable[[str], None],
    ) -> Path:
        """Return the model of a deployment; download it if needed, and check its content.

        Args:
            deployment: the deployment.
            raise_if_cancelled: called every 0.1 s; an exception from it aborts the download.
            say: called with a line about the progress, in any thread.

        Returns:
            The folder with this model and nothing else.

        Raises:
            ContentMismatch: the model at the URL has another content_id.
            ModelError: the URL has no model.
            ModelUnavailable: the model cannot be downloaded now, or there is no room for it.
            UsageError: the URL's protocol is unknown, or needs a library that is not installed.
        """
        folder = self._folder / deployment.content_id
        if folder.is_dir():
            with contextlib.suppress(ModelError, FileNotFoundError):
                os.utime(folder)  # before the check, so that no other agent removes it meanwhile
                self._verify(folder, deployment)
                return folder
            say(f"the cached model {folder} has changed or was removed: downloading it again")
            shutil.rmtree(folder, ignore_errors=True)
        with self._download_folder() as part:
            _Download(deployment.model_url, part, self._room_for, say).wait(raise_if_cancelled)
            self._verify(part, deployment)
            self._store(part, folder)
        if (most_bytes := self._most_bytes) is not None:
            self._prune(lambda cached: cached <= most_bytes, folder)
        return folder

    @contextlib.contextmanager
    def _download_folder(self) -> Iterator[Path]:
        """Yield a folder for a download, and remove it at the end, unless it was renamed."""
        with contextlib.ExitStack() as stack:
            while (part := self._new_download_folder(stack)) is None:
                pass
            stack.callback(shutil.rmtree, part, ignore_errors=True)
            yield part

    def _new_download_folder(self, stack: contextlib.ExitStack) -> Path | None:
        """Create and lock a folder; return None if another agent removed it before it was locked.

        Each download gets a new folder: an aborted one may still write to its folder for a moment.
        """
        try:
            part = Path(tempfile.mkdtemp(prefix=_PART_PREFIX, dir=self._folder))
        except OSError as error:
            raise ModelUnavailable(f"{self._folder} cannot be written: {error.strerror}") from None
        try:
            stack.enter_context(_lock_folder(part))
        except (BlockingIOError, FileNotFoundError):
            return None
        except OSError:  # the file system has no locks
            return part
        return part if part.exists() else None

    def _verify(self, folder: Path, deployment: Deployment) -> None:
        """Check the content before any program opens the model, as a model may be malicious.

        Raises:
            ContentMismatch: the content_id is not that of the deployment.
        """
        from ...teacher.backends.selection import content_of

        preprocessing = [value for name, value in deployment.options if name == "preprocess"]
        content_id = content_of(str(folder), preprocessing)
        if content_id != deployment.content_id:
            raise ContentMismatch(
                f"the model at {deployment.model_url} has content {content_id}, and service "
                f"{deployment.service} is deployed with {deployment.content_id}: it is not served. "
                "Put the declared model there, or deploy the service with the content that "
                "'edl teacher fingerprint' prints"
            )

    def _room_for(self, nbytes: int) -> int:
        """Return the largest size that a new model may have, in bytes.

        `nbytes` is its size as far as known. If the cache has a limit, old models are first removed
        until the disk has room for `nbytes`.
        """
        if self._most_bytes is None:
            return self._free()
        self._prune(lambda _: self._free() >= nbytes)
        return min(self._free(), self._most_bytes)

    def _free(self) -> int:
        return int(shutil.disk_usage(self._folder).free * _FREE_SHARE)

    def _store(self, part: Path, folder: Path) -> None:
        try:
            part.rename(folder)
        except OSError as error:
            if not folder.is_dir():  # otherwise another agent has stored the model meanwhile
                raise ModelUnavailable(f"{folder} cannot be written: {error.strerror}") from None

    def _prune(self, suffices: Callable[[int], bool], keep: Path | None = None) -> None:
        """Remove the least recently used models, except `keep` and recent ones.

        `suffices` is called with the bytes of all cached models; it returns whether to stop.
        """
        with contextlib.suppress(OSError):
            models = [self._folder / name for name in self.contents()]
            models.sort(key=lambda entry: entry.stat().st_mtime)
            sizes = {
                entry: sum(file.stat().st_size for file in entry.rglob("*") if file.is_file())
                for entry in models
            }
            for entry in models:
                is_recent = time.time() - entry.stat().st_mtime < _RECENT_S
                if suffices(sum(sizes.values())) or entry == keep or is_recent:
                    continue
                shutil.rmtree(entry, ignore_errors=True)
                del sizes[entry]

    def _remove_leftovers(self) -> None:
        """Remove partial downloads of agents that were killed. Running downloads are locked."""
        for entry in self._folder.glob(f"{_PART_PREFIX}*"):
            with contextlib.suppress(OSError), _lock_folder(entry):
                shutil.rmtree(entry, ignore_errors=True)


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; the end of this process releases it too.

    Files with process ids could not replace it: containers that share a folder may use equal ids.

    Raises:
        OSError: another process has the lock, or the folder cannot be locked.
    """
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)

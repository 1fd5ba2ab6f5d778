"""Models are fetched whole or not at all, and never another content."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from edl.coordinator.machines import Deployment
from edl.mesh.agent import model_cache
from edl.mesh.agent.model_cache import ModelCache
from edl.runtime.errors import ContentMismatch, EdlError, ModelError, ModelUnavailable, UsageError
from edl.teacher.backends import selection
from edl.teacher.backends.selection import content_of
from edl.tests.teacher import same_network
from edl.tests.waiting import DEADLINE_S


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    same_network.write_onnx(folder, external=True)
    return folder


def of(url: str, content: str, **more: object) -> Deployment:
    return Deployment("a", url, content, **more)  # type: ignore[arg-type]


def fetched(cache: ModelCache, deployment: Deployment) -> Path:
    return cache.fetch(deployment, lambda: None, lambda text: None)


def left(folder: Path) -> list[str]:
    return sorted(entry.name for entry in (folder / "models").iterdir())


def downloads_end() -> None:
    """Wait for the downloads that were given up: each removes what it has still written."""
    for thread in threading.enumerate():
        if thread.name == "edl-fetch":
            thread.join(DEADLINE_S)


def refuses(
    cache: Path,
    deployment: Deployment,
    error: type[EdlError],
    words: str | None = None,
    **options: int,
) -> None:
    """That it cannot be fetched, and nothing is left of it."""
    with pytest.raises(error, match=words):
        fetched(ModelCache(cache, **options), deployment)
    assert left(cache) == []


def test_a_folder_is_fetched_once_and_kept_under_its_content(tmp_path: Path, model: Path) -> None:
    content, cache = content_of(str(model)), ModelCache(tmp_path)
    told: list[str] = []
    deployment = of(f"file://{model}", content)
    place = cache.fetch(deployment, lambda: None, told.append)
    assert content_of(str(place)) == content
    assert cache.contents() == (content,)
    assert told
    assert fetched(cache, of("file:///nowhere", content)) == place  # it need not be fetched again
    assert fetched(ModelCache(tmp_path), deployment) == place
    with (place / "net.weights").open("ab") as weights:
        weights.write(b"!")
    assert content_of(str(fetched(cache, deployment))) == content, "it was changed"
    (place / "net.onnx").unlink()
    assert content_of(str(fetched(cache, deployment))) == content
    other = content_of(str(model), ["unit"])
    fetched(cache, of(f"file://{model}", other, options=(("preprocess", "unit"),)))
    words = "has content .*edl teacher fingerprint"
    refuses(tmp_path / "other", of(f"file://{model}", other), ContentMismatch, words)


def test_a_fetch_that_is_given_up_leaves_nothing(tmp_path: Path, model: Path) -> None:
    def give_up() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        ModelCache(tmp_path).fetch(of(f"file://{model}", content_of(str(model))), give_up, print)
    downloads_end()
    assert left(tmp_path) == []
    leftover = tmp_path / "models" / f".part-{os.getpid()}-0"  # a container restarts with its ids
    leftover.mkdir()
    shutil.copy(model / "net.onnx", leftover)
    before: list[str] = []

    def other_starts(_: str) -> None:
        before.extend(left(tmp_path))
        ModelCache(tmp_path)

    content = content_of(str(model))
    ModelCache(tmp_path).fetch(of(f"file://{model}", content), lambda: None, other_starts)
    assert len(before) == 1
    assert left(tmp_path) == [content]
    (tmp_path / "models").chmod(0o777)
    with pytest.raises(UsageError, match="other users may write"):
        ModelCache(tmp_path)


@pytest.mark.parametrize("removed", [True, False], ids=["removed", "about to be removed"])
def test_a_partial_download_that_another_agent_removes_before_it_is_locked_is_made_anew(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, removed: bool
) -> None:
    made: list[str] = []
    mkdtemp = tempfile.mkdtemp

    def make(**options: Any) -> str:
        made.append(mkdtemp(**options))
        if len(made) == 1 and removed:
            ModelCache(tmp_path)  # as another agent that starts
        elif len(made) == 1:
            fcntl.flock(stack.enter_context(open_folder(made[0])), fcntl.LOCK_EX)
        return made[-1]

    cache, content = ModelCache(tmp_path), content_of(str(model))
    monkeypatch.setattr(tempfile, "mkdtemp", make)
    with contextlib.ExitStack() as stack:
        fetched(cache, of(f"file://{model}", content))
    assert len(made) == 2
    ModelCache(tmp_path)
    assert left(tmp_path) == [content]


@contextlib.contextmanager
def open_folder(path: str) -> Iterator[int]:
    number = os.open(path, os.O_RDONLY)
    try:
        yield number
    finally:
        os.close(number)


def test_a_cached_model_stays_while_it_is_checked(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another agent that needs room removes only models that were not used lately."""
    content, other = content_of(str(model)), content_of(str(model), ["unit"])
    place = fetched(ModelCache(tmp_path), of(f"file://{model}", content))
    os.utime(place, (1.0, 1.0))

    def checked(*args: Any) -> str:
        monkeypatch.undo()
        size = sum(file.stat().st_size for file in model.iterdir())
        deployment = of(f"file://{model}", other, options=(("preprocess", "unit"),))
        fetched(ModelCache(tmp_path, most_bytes=size), deployment)
        return content_of(*args)

    monkeypatch.setattr(selection, "content_of", checked)
    assert fetched(ModelCache(tmp_path), of("file:///nowhere", content)) == place
    assert left(tmp_path) == sorted([content, other])


def test_files_of_unknown_size_get_the_room_that_the_others_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"/m/a": None, "/m/b": 60}
    source = Mock()
    source.find.return_value = list(sizes)
    source.info = lambda path: {"type": "file", "size": sizes[path]}
    source.open = lambda *_: io.BytesIO(bytes(60))
    monkeypatch.setattr(model_cache, "_open_file_system", lambda _: (source, "/m"))
    words = r"larger than .* \(40 bytes\)"
    refuses(tmp_path, of("s3://m", "0" * 64), ModelUnavailable, words, most_bytes=100)


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ("file:///nowhere/model", ModelError, "no model at"),
        ("http://127.0.0.1:9/net.onnx", ModelUnavailable, "cannot be fetched now"),
        ("oss://bucket/model", EdlError, "oss"),
    ],
)
def test_what_cannot_be_fetched_says_so(
    tmp_path: Path, url: str, error: type[EdlError], words: str
) -> None:
    refuses(tmp_path, of(url, "0" * 64), error, words)


def test_models_used_longest_ago_make_room_and_one_without_room_is_refused_before_it_is_fetched(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = content_of(str(model))
    deployment, old = of(f"file://{model}", content), tmp_path / "old"
    for name in ("1" * 64, "2" * 64):
        folder = old / "models" / name
        folder.mkdir(parents=True)
        (folder / "x").write_bytes(b"x" * 1400)
    os.utime(old / "models" / ("1" * 64), (1.0, 1.0))
    fetched(ModelCache(old, most_bytes=8000), deployment)
    assert set(left(old)) == {"2" * 64, content}
    words = "room for 2,000 .*gib= of --cache"
    refuses(tmp_path, deployment, ModelUnavailable, words, most_bytes=2000)
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    refuses(tmp_path, deployment, ModelUnavailable, "there is room for 95")


def test_old_models_make_room_on_a_full_disk(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, models = content_of(str(model)), tmp_path / "models"
    for second, size in enumerate((4000, 1400)):
        folder = models / (str(second) * 64)
        folder.mkdir(parents=True)
        (folder / "x").write_bytes(b"x" * size)
        os.utime(folder, (second, second))

    def usage(_: Path, usage: Any = shutil.disk_usage(tmp_path)) -> Any:  # noqa: B008
        files = [file for file in models.rglob("*") if file.is_file()]
        return usage._replace(free=9000 - sum(file.stat().st_size for file in files))

    monkeypatch.setattr(shutil, "disk_usage", usage)
    fetched(ModelCache(tmp_path, most_bytes=50_000), of(f"file://{model}", content))
    assert set(left(tmp_path)) == {"1" * 64, content}


@pytest.mark.parametrize("inside", [False, True])
def test_a_pipe_or_device_is_no_model(tmp_path: Path, inside: bool) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    os.mkfifo(folder / "net.onnx")  # opened, it would wait for a writer for ever
    url = f"file://{folder}" if inside else f"file://{folder}/net.onnx"
    refuses(tmp_path / "cache", of(url, "0" * 64), ModelError)


def test_a_disk_that_is_full_meanwhile_leaves_nothing(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, content = Path.open, content_of(str(model))

    def full(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if "x" in mode:
            return opened(Path("/dev/full"), "wb", buffering=0)
        return opened(path, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", full)
    refuses(tmp_path, of(f"file://{model}", content), ModelUnavailable, "No space left")


def test_over_http_a_file_comes_with_the_one_beside_it(tmp_path: Path, server: str) -> None:
    served, cache = tmp_path / "served", ModelCache(tmp_path / "cache")
    (served / "net.json").write_text("{}")
    (served / "net.pdiparams").write_bytes(b"weights" * 1000)
    content = content_of(str(served))
    place = fetched(cache, of(f"{server}/net.json?version=3", content))
    assert sorted(file.name for file in place.iterdir()) == ["net.json", "net.pdiparams"]
    with pytest.raises(ModelError, match="no model at"):
        fetched(cache, of(f"{server}/other.onnx", "0" * 64))
    (served / "net.json").write_text("[]")
    with pytest.raises(ContentMismatch):
        fetched(ModelCache(tmp_path / "third"), of(f"{server}/net.json", content))


def test_a_server_that_never_ends_or_says_nothing_is_given_up(tmp_path: Path, server: str) -> None:
    words, endless = (
        r"larger than its stated size, .* \(10,000,000 bytes\)",
        of(f"{server}/endless.onnx", "0" * 64),
    )
    refuses(tmp_path / "cache", endless, ModelUnavailable, words, most_bytes=10_000_000)
    told, cache = threading.Event(), ModelCache(tmp_path / "cache")

    def give_up() -> None:
        if told.is_set():
            raise InterruptedError

    with pytest.raises(InterruptedError):
        cache.fetch(of(f"{server}/silent.onnx", "0" * 64), give_up, lambda _: told.set())
    Handler.ended.set()
    downloads_end()
    assert left(tmp_path / "cache") == []


class Handler(SimpleHTTPRequestHandler):
    """Serves files; and under two names bytes without end, or none at all."""

    ended: threading.Event

    def do_GET(self) -> None:
        if self.path not in ("/endless.onnx", "/silent.onnx"):
            super().do_GET()
            return
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            while self.path == "/endless.onnx":
                self.wfile.write(bytes(1 << 16))
            self.ended.wait(DEADLINE_S)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    Handler.ended = threading.Event()
    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder)) as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        Handler.ended.set()
        serving.shutdown()
        thread.join()


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "", "a\0b"])
def test_a_name_that_leaves_the_folder_is_refused(name: str) -> None:
    with pytest.raises(ModelError):
        model_cache.checked_name(name, "s3://b/m")  # only a hostile bucket has such names

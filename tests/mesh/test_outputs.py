"""Where the demo writes: refused before the work where that is possible, one line where not."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from edl.errors import UsageError
from edl.mesh.demo import run
from edl.mesh.demo.cli import cache_folder
from edl.mesh.demo.report import DemoReport
from edl.tests.mesh.stand_ins import report


@pytest.mark.parametrize(
    ("name", "why"),
    [("folder", "it is a folder"), ("nowhere/picture.png", "there is no folder")],
)
def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=why):
        run.check_writable(tmp_path / name)
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_a_folder_without_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(UsageError, match="nothing may be written"):
        run.check_writable(tmp_path / "picture.png")


def test_a_path_that_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    run.check_writable(tmp_path / "new.png")
    (tmp_path / "old.png").write_bytes(b"old")
    run.check_writable(tmp_path / "old.png")
    assert (tmp_path / "old.png").read_bytes() == b"old"
    assert not (tmp_path / "new.png").exists()


def test_a_full_disk_is_named_and_what_fits_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(_: DemoReport, path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(run, "draw", draw)
    outputs = run.Outputs(tmp_path / "p.png", tmp_path / "d.json")
    with pytest.raises(UsageError, match=r"cannot write .*p\.png: No space left on device"):
        run.write_outputs(report(), outputs)
    assert json.loads((tmp_path / "d.json").read_text())["seconds"] == 60.0


def test_a_cache_that_cannot_be_written_is_replaced_for_this_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    said: list[str] = []
    with run.usable_cache(tmp_path / "file" / "cache", said.append) as folder:
        assert folder.is_dir()
        assert tmp_path not in folder.parents
    assert not folder.exists()
    assert len(said) == 1
    assert "will not be kept" in said[0]


def test_a_cache_that_can_be_written_is_used(tmp_path: Path) -> None:
    said: list[str] = []
    with run.usable_cache(tmp_path / "a" / "b", said.append) as folder:
        assert folder == tmp_path / "a" / "b"
    assert folder.is_dir()
    assert list(folder.iterdir()) == []
    assert said == []


def test_the_cache_is_where_the_user_keeps_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == Path("/elsewhere/edl-dist/demo")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_folder() == Path("/home/somebody/.cache/edl-dist/demo")

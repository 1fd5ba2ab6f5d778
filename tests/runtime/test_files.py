"""Files that commands write."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from edl.runtime.errors import UsageError
from edl.runtime.files import check_writable, replacing


def test_a_file_is_checked_and_not_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old.png").touch()
    for name in ("old.png", "new.png"):
        check_writable(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["old.png"]
    for path, why in ((tmp_path, "is a folder"), (tmp_path / "no/p.png", "there is no folder")):
        with pytest.raises(UsageError, match=why):
            check_writable(path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    for name in ("old.png", "new.png"):
        with pytest.raises(UsageError, match="is not writable"):
            check_writable(tmp_path / name)


def test_a_file_is_replaced_as_a_whole_or_stays(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def write_half() -> None:
        with replacing(path) as part:
            part.write_text("half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(UsageError, match=r"cannot write .*a: No space left on device"):
        write_half()
    assert path.read_text() == "old"
    with replacing(path) as part:
        part.write_text("new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(UsageError, match="cannot write /: "), replacing(Path("/")):
        pass


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    file, link = tmp_path / "disk/a", tmp_path / "a"
    link.symlink_to(file)
    for text in ("new", "newer"):  # the link names no file yet, and then one
        with replacing(link) as part:
            part.write_text(text)
        assert link.readlink() == file
        assert file.read_text() == text
    assert list(file.parent.iterdir()) == [file]


def test_a_pipe_is_written_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_writable(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with replacing(pipe) as part:
            part.write_text("text")
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]

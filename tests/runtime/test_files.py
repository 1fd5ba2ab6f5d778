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

"""Disks that are full, refuse, or can only be read: said, counted, and never a wrong label."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.distill_reader.store import LabelStore
from edl.distill_reader.store.database import Database
from edl.distill_reader.store.store import PAUSE_S, Store
from edl.errors import StoreUnavailable
from edl.tests.distill_reader.store.samples import rows_in, sample_keys
from edl.tests.distill_reader.store.test_store import Clock, fill

MIB = 1 << 20
NOBODY = 65534


@contextlib.contextmanager
def no_file_grows_beyond(limit_bytes: int) -> Iterator[None]:
    """The system refuses to write more, as a disk without room does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def without_rights() -> Iterator[None]:
    """As a user to whom permissions apply."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if before == 0:
            os.seteuid(before)


@pytest.fixture
def shelf() -> Iterator[Path]:
    """A directory that others reach too, as those of pytest are not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def lock_up(shelf: Path) -> None:
    for path in (*shelf.iterdir(), shelf):
        path.chmod(0o555)


def test_a_disk_that_refuses_costs_new_rows_and_no_old_ones(tmp_path: Path) -> None:
    clock = Clock()
    with Store(LabelStore(tmp_path / "labels", 64 * MIB), clock) as store:
        fill(store, range(1000))
        with no_file_grows_beyond(3 * MIB):
            for begin in range(1000, 20_000, 1000):
                fill(store, range(begin, begin + 1000))
            assert store.figures.dropped > 0
            assert "cannot be used now" in store.figures.trouble
            assert store.get_many(sample_keys(range(1000))) == rows_in(None, range(1000))
            dropped = store.figures.dropped
            clock.now += PAUSE_S - 1
            fill(store, range(100))
            assert store.figures.dropped == dropped + 100, "a disk that has refused is left alone"
        clock.now += 1
        fill(store, range(19_000, 20_000))
        assert store.figures.dropped == dropped + 100
        numbers = range(20_000)
        found, rows = store.get_many(sample_keys(numbers)), rows_in(None, numbers)
        assert found[19_000:] == rows[19_000:]
        assert all(one in (None, row) for one, row in zip(found, rows, strict=True))


def test_a_store_that_cannot_be_written_is_read(shelf: Path) -> None:
    settings = LabelStore(shelf / "labels", MIB)
    with Store(settings) as store:
        fill(store, range(100))
    lock_up(shelf)
    with without_rights(), Store(settings) as store:
        assert not store.writable
        assert store.get_many(sample_keys(range(100))) == rows_in(None, range(100))
        fill(store, range(100, 110))
        assert store.figures.dropped == 10


def test_one_that_was_not_closed_and_cannot_be_written_says_so(shelf: Path) -> None:
    settings = LabelStore(shelf / "labels", MIB)
    with Store(settings) as store:
        fill(store, range(100))
        for end in ("", "-wal"):
            shutil.copy(settings.path + end, str(shelf / "killed") + end)
    lock_up(shelf)
    with without_rights(), pytest.raises(StoreUnavailable, match="open it once where it can be"):
        Store(LabelStore(shelf / "killed", MIB))


def test_a_directory_in_which_nothing_can_be_made(shelf: Path) -> None:
    lock_up(shelf)
    with without_rights(), pytest.raises(StoreUnavailable, match="unable to open"):
        Store(LabelStore(shelf / "labels", MIB))


def test_one_that_writes_without_end_is_not_waited_for_without_end(
    tmp_path: Path,
) -> None:
    settings = LabelStore(tmp_path / "labels", MIB)
    with Store(settings) as store:
        fill(store, range(10))
        other = Database(settings.path, write=True)
        store._database.execute("PRAGMA busy_timeout = 50")
        with other.writing():
            fill(store, range(10, 20))
            assert store.get_many(sample_keys(range(10))) == rows_in(None, range(10))
        other.close()
        assert store.figures.dropped == 10
        assert "locked" in store.figures.trouble

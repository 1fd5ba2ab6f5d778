"""Files that are damaged: a row is right or missing, and nothing else is believed either."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edl.distill_reader.store import LabelStore
from edl.distill_reader.store.database import Database
from edl.distill_reader.store.rows import Content, Model
from edl.distill_reader.store.store import Store
from edl.errors import StoreUnavailable
from edl.tests.distill_reader.store.samples import damage, rows_in, sample_keys
from edl.tests.distill_reader.store.test_store import MIB, fill


@pytest.fixture
def settings_(tmp_path: Path) -> LabelStore:
    return LabelStore(tmp_path / "labels.edl", 64 * MIB)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE labels SET data = zeroblob(length(data)) WHERE id = 1",
        "UPDATE labels SET data = substr(data, 1, 10) WHERE id = 1",
        "UPDATE labels SET data = 7 WHERE id = 1",
        "UPDATE keys SET sum = x'00' WHERE id = 1",
        "UPDATE keys SET id = 2 WHERE id = 1",
        "UPDATE keys SET layout = 99 WHERE id = 1",
    ],
)
def test_a_damaged_row_is_missing_and_is_made_anew(settings_: LabelStore, statement: str) -> None:
    keys, rows = sample_keys(range(10)), rows_in(None, range(10))
    with Store(settings_) as store:
        store.put_many(keys, rows)
    damage(settings_.path, statement)
    with Store(settings_) as store:
        found = store.get_many(keys)
        assert found.count(None) == 1
        assert [one or row for one, row in zip(found, rows, strict=True)] == rows
        assert store.figures.damaged == 1
        store.put_many(keys, rows)
        assert store.get_many(keys) == rows


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE makers SET text = CAST('liaR' AS BLOB)",
        "UPDATE keys SET maker = 99",
        "DELETE FROM makers",
    ],
)
def test_a_row_whose_teacher_is_not_known_is_missing(settings_: LabelStore, statement: str) -> None:
    """Else it would stay when that teacher is disowned."""
    rows = [replace(row, makers=frozenset(["liar"])) for row in rows_in(None, range(10))]
    with Store(settings_) as store:
        store.put_many(sample_keys(range(10)), rows)
    damage(settings_.path, statement)
    with Store(settings_) as store:
        assert store.get_many(sample_keys(range(10))) == [None] * 10
        assert store.figures.damaged == 10


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE services SET told = CAST(replace(told, 'model-1', 'model-3') AS BLOB)",
        "UPDATE services SET told = x'00'",
        "UPDATE services SET told = 7",
        "UPDATE services SET service = CAST('t' AS BLOB)",
    ],
)
def test_a_damaged_model_is_not_remembered(settings_: LabelStore, statement: str) -> None:
    """A run without teachers would read the labels of another one."""
    with Store(settings_) as store:
        store.remember("s", Model(Content("model-1"), ("x",)))
    damage(settings_.path, statement)
    with Store(settings_) as store:
        assert store.recall("s") is store.recall("t") is None


def test_a_damaged_layout_gives_no_label(settings_: LabelStore) -> None:
    with Store(settings_) as store:
        fill(store, range(10))
    damage(settings_.path, "UPDATE layouts SET text = replace(text, 'FP32', 'INT32')")
    with Store(settings_) as store:
        assert store.get_many(sample_keys(range(10))) == [None] * 10
        assert store.figures.damaged == 10


def test_a_file_that_breaks_while_it_is_open_is_left_alone(settings_: LabelStore) -> None:
    with Store(settings_) as store:
        fill(store, range(2000))
    size = os.stat(settings_.path).st_size
    with Store(settings_) as store:
        assert None not in store.get_many(sample_keys(range(10)))
        with open(settings_.path, "r+b") as file:
            file.seek(8192)
            file.write(b"\xff" * (size - 8192))
        found = store.get_many(sample_keys(range(1990, 2000)))
        assert found == [None] * 10 or found == rows_in(None, range(1990, 2000))
        for begin in range(0, 2000, 100):
            store.get_many(sample_keys(range(begin, begin + 100)))
        assert "broken" in store.figures.trouble
        assert store.get_many(sample_keys(range(10))) == [None] * 10
        fill(store, range(10))
        assert store.figures.dropped == 10


NOBODY = 65534


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
    tmp_path: Path, impatient: None
) -> None:
    settings = LabelStore(tmp_path / "labels", MIB)
    with Store(settings) as store:
        fill(store, range(10))
        other = Database(settings.path, write=True)
        with other.writing():
            fill(store, range(10, 20))
            assert store.get_many(sample_keys(range(10))) == rows_in(None, range(10))
        other.close()
        assert store.figures.dropped == 10
        assert "locked" in store.figures.trouble

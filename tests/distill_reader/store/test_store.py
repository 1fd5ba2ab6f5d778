"""A store returns the rows that were put in, or none, whatever happens to its file."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.distill_reader.store import LabelStore
from edl.distill_reader.store.database import PAGE_BYTES, Database, converting_errors
from edl.distill_reader.store.rows import LabelRow, ModelId, ServiceModel
from edl.distill_reader.store.store import PAUSE_S, LabelDatabase
from edl.proto.forms import LabelForm
from edl.runtime.errors import LabelStoreUnavailable, UsageError
from edl.tests.distill_reader.store.samples import damage, rows_in, sample_keys

SLACK_BYTES = 32 << 20
MIB = 1 << 20


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores that are opened now hardly wait for the locks of others."""
    monkeypatch.setattr("edl.distill_reader.store.database.BUSY_S", 0.05)


@pytest.fixture
def settings_(tmp_path: Path) -> LabelStore:
    return LabelStore(tmp_path / "labels.edl", 64 * MIB)


def fill(store: LabelDatabase, numbers: range, form: LabelForm | None = None) -> None:
    store.put_many(sample_keys(numbers), rows_in(form, numbers))


def made_by(maker: str, numbers: Sequence[int], form: LabelForm | None = None) -> list[LabelRow]:
    return [replace(row, makers=frozenset([maker])) for row in rows_in(form, numbers)]


def bytes_on_disk(path: str) -> int:
    paths = [Path(path + end) for end in ("", "-wal", "-shm")]
    return sum(path.stat().st_size for path in paths if path.exists())


def test_stored_rows_come_back_in_any_order(settings_: LabelStore, rng: random.Random) -> None:
    rows = rows_in(None, range(1000))
    keys = sample_keys(range(1000))
    with LabelDatabase(settings_) as store:
        assert store.get_many(keys) == [None] * 1000
        store.put_many(keys, rows)
        assert store.get_many(keys) == rows
        assert (store.stats.hits, store.stats.misses) == (1000, 1000)
        assert store.stats.written == 1000
    order = rng.choices(range(1000), k=300)  # some more than once
    with LabelDatabase(settings_) as store:
        assert store.get_many([keys[n] for n in order]) == [rows[n] for n in order]
        assert store.get_many([]) == []
        store.put_many([], [])
    assert not os.path.exists(settings_.path + "-wal"), "the last to close tidies up"


def test_a_row_becomes_richer_and_never_poorer(settings_: LabelStore) -> None:
    keys = sample_keys([5])
    topk = LabelForm.parse("topk:5")
    with LabelDatabase(settings_) as store:
        fill(store, range(5, 6), topk)
        fill(store, range(5, 6), None)
        assert store.get_many(keys) == rows_in(None, [5])
        fill(store, range(5, 6), topk)
        assert store.get_many(keys) == rows_in(None, [5])
        assert store.stats.written == 2
        assert store.stats.dropped == 0


def test_what_a_teacher_has_labelled_goes_when_it_is_disowned(settings_: LabelStore) -> None:
    topk = LabelForm.parse("topk:5")
    with LabelDatabase(settings_) as store:
        store.put_many(sample_keys(range(600)), made_by("honest", range(600)))
        store.put_many(sample_keys(range(600, 1000)), made_by("liar", range(600, 1000)))
        for maker, form in (("honest", topk), ("liar", None)):  # of these both have a part
            store.put_many(sample_keys(range(1000, 1010)), made_by(maker, range(1000, 1010), form))
    with LabelDatabase(settings_) as store:
        store.disown("liar")
        assert store.stats.disowned == 410
        assert store.get_many(sample_keys(range(1010)))[600:] == [None] * 410
        assert store.get_many(sample_keys(range(600))) == rows_in(None, range(600))


# --- what else may stand at the path


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(b"some text of the user"),
        lambda path: path.write_bytes(b"SQLite format 3\0" + bytes(4080)),
        lambda path: damage(str(path), "CREATE TABLE customers (name)"),
    ],
)
def test_foreign_files_are_refused_unchanged(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "mine"
    make(path)
    before = path.read_bytes()
    with pytest.raises(UsageError, match=r"is no label store.*name another path"):
        LabelDatabase(LabelStore(path, MIB))
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["mine"]


def test_a_store_of_another_version_is_refused(settings_: LabelStore) -> None:
    LabelDatabase(settings_).close()
    damage(settings_.path, "PRAGMA user_version = 9")
    with pytest.raises(UsageError, match="of version 9, this program reads 2"):
        LabelDatabase(settings_)


def test_an_empty_file_becomes_a_store(settings_: LabelStore) -> None:
    Path(settings_.path).touch()
    with LabelDatabase(settings_) as store:
        fill(store, range(3))
        assert None not in store.get_many(sample_keys(range(3)))


@pytest.mark.parametrize("name", ["labels", "50 %?#.edl", os.fsdecode(b"no \xff utf-8")])
def test_any_path_can_be_that_of_a_store(tmp_path: Path, name: str) -> None:
    """Two slashes at the start are those of a joined path; in a URI a host follows them."""
    settings = LabelStore(f"/{tmp_path}/{name}", MIB)
    with LabelDatabase(settings) as store:
        fill(store, range(3))
        assert store.get_many(sample_keys(range(3))) == rows_in(None, range(3))
    assert (tmp_path / name).exists()


def test_a_slow_disk_is_not_taken_for_readers_without_a_pause(
    settings_: LabelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LabelDatabase(settings_) as store:
        fill(store, range(10))
        monkeypatch.setattr("edl.distill_reader.store.database.WAL_MERGE_BYTES", 0)
        log = Path(settings_.path + "-wal")
        monkeypatch.setattr("time.monotonic", lambda: 0.0 if log.stat().st_size else 9.0)
        fill(store, range(10, 20))
        assert (store.stats.dropped, store.stats.trouble) == (0, "")


def test_a_log_that_cannot_be_read_is_no_bare_error_of_sqlite(settings_: LabelStore) -> None:
    with LabelDatabase(settings_) as store, Database(settings_.path, write=True) as other:
        fill(store, range(10))
        os.truncate(settings_.path + "-wal", 0)
        with pytest.raises(LabelStoreUnavailable):
            other.shrink()
        with pytest.raises(LabelStoreUnavailable):
            _ = other.file_bytes


def test_locks_that_others_keep_are_no_damage() -> None:
    error = sqlite3.OperationalError("locking protocol")
    error.sqlite_errorname = "SQLITE_PROTOCOL"
    refusal = pytest.raises(LabelStoreUnavailable, match="cannot be used now")
    with refusal, converting_errors("labels"):
        raise error


def test_settings_that_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least 1048576 bytes"):
        LabelStore(tmp_path / "a", 1000)
    size: Any = "1G"
    with pytest.raises(UsageError, match="max_bytes is a whole number, not '1G'"):
        LabelStore(tmp_path / "a", size)
    size = np.int64(MIB)
    assert type(LabelStore(tmp_path / "a", size).max_bytes) is int
    with pytest.raises(UsageError, match="is a file"):
        LabelStore(tmp_path, MIB)
    with pytest.raises(UsageError, match="list of fields"):
        LabelStore(tmp_path / "a", MIB, sample_ids="index")
    fields: Any
    for fields in (1, np.array(1)):
        with pytest.raises(UsageError, match="list of fields"):
            LabelStore(tmp_path / "a", MIB, sample_ids=fields)
    for fields in ([0.5], [None], [True]):
        with pytest.raises(UsageError, match="an index in sample_ids is a whole number, not"):
            LabelStore(tmp_path / "a", MIB, sample_ids=fields)
    fields = np.array([1])
    assert json.dumps(LabelStore(tmp_path / "a", MIB, sample_ids=fields).sample_ids) == "[1]"
    with pytest.raises(UsageError, match="no directory"):
        LabelDatabase(LabelStore(tmp_path / "gone" / "a", MIB))


def test_another_reader_of_this_process_takes_no_lock_away(tmp_path: Path) -> None:
    """As the members of an ensemble share one: SQLite's locks are the process's."""
    path = tmp_path / "labels"

    def locks() -> list[str]:
        inode = f":{os.stat(path).st_ino} "
        return [line for line in Path("/proc/locks").read_text().splitlines() if inode in line]

    with LabelDatabase(LabelStore(path, MIB)) as one:
        one.get_many(sample_keys([1]))
        assert locks()
        LabelDatabase(LabelStore(path, MIB)).close()
        assert locks()


@pytest.fixture
def with_liar(tmp_path: Path) -> LabelStore:
    """A store in which a liar has labelled the first ten samples."""
    settings = LabelStore(tmp_path / "labels", 64 * MIB)
    with LabelDatabase(settings) as store:
        store.put_many(sample_keys(range(10)), made_by("liar", range(10)))
        fill(store, range(10, 20))
    return settings


def test_what_a_liar_has_said_is_not_given_out_though_it_cannot_be_taken_out(
    with_liar: LabelStore, caplog: pytest.LogCaptureFixture, impatient: None
) -> None:
    clock, keys = Clock(), sample_keys(range(20))
    honest = [*[None] * 10, *rows_in(None, range(10, 20))]
    with LabelDatabase(with_liar, clock) as store:
        with Database(with_liar.path, write=True) as other, other.writing():
            fill(store, range(20, 30))
            assert store.stats.dropped == 10
            assert "locked" in store.stats.trouble
            store.disown("liar")
            assert store.stats.disowned == 0
            assert store.get_many(keys) == honest
        clock.now += PAUSE_S
        fill(store, range(20, 21))
        assert store.stats.disowned == 10, "it was made up for"
        assert store.get_many(keys) == honest
    assert "still holds labels" not in caplog.text
    with LabelDatabase(with_liar) as store:
        assert store.get_many(keys) == honest


def test_a_store_that_still_holds_labels_of_a_liar_says_so_at_the_end(
    with_liar: LabelStore, caplog: pytest.LogCaptureFixture, impatient: None
) -> None:
    store = LabelDatabase(with_liar)
    with Database(with_liar.path, write=True) as other, other.writing():
        store.disown("liar")
        store.close()
    assert "still holds labels of liar, which is not trusted" in caplog.text


# --- files that are damaged: a row is right or missing


@pytest.mark.parametrize(
    ("statement", "damaged"),
    [
        ("UPDATE labels SET data = zeroblob(length(data)) WHERE id = 1", 1),
        ("UPDATE labels SET data = substr(data, 1, 10) WHERE id = 1", 1),
        ("UPDATE labels SET data = 7 WHERE id = 1", 1),
        ("UPDATE keys SET sum = x'00' WHERE id = 1", 1),
        ("UPDATE keys SET id = 2 WHERE id = 1", 1),
        ("UPDATE keys SET layout = 99 WHERE id = 1", 1),
        ("UPDATE layouts SET text = replace(text, 'FP32', 'INT32')", 10),
        # Rows of an unknown teacher would stay when that teacher is disowned.
        ("UPDATE makers SET text = CAST('liaR' AS BLOB)", 10),
        ("UPDATE keys SET maker = 99", 10),
        ("DELETE FROM makers", 10),
    ],
)
def test_a_damaged_row_is_missing_and_is_made_anew(
    settings_: LabelStore, statement: str, damaged: int
) -> None:
    keys, rows = sample_keys(range(10)), rows_in(None, range(10))
    with LabelDatabase(settings_) as store:
        store.put_many(keys, made_by("liar", range(10)))
    damage(settings_.path, statement)
    with LabelDatabase(settings_) as store:
        found = store.get_many(keys)
        assert found.count(None) == damaged
        assert [one or row for one, row in zip(found, rows, strict=True)] == rows
        assert store.stats.damaged == damaged
        store.put_many(keys, rows)
        assert store.get_many(keys) == rows


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
    with LabelDatabase(settings_) as store:
        store.remember("s", ServiceModel(ModelId("model-1"), ("x",)))
    damage(settings_.path, statement)
    with LabelDatabase(settings_) as store:
        assert store.recall("s") is store.recall("t") is None


def test_a_file_that_breaks_while_it_is_open_is_left_alone(settings_: LabelStore) -> None:
    with LabelDatabase(settings_) as store:
        fill(store, range(2000))
    size = os.stat(settings_.path).st_size
    with LabelDatabase(settings_) as store:
        assert None not in store.get_many(sample_keys(range(10)))
        with open(settings_.path, "r+b") as file:
            file.seek(8192)
            file.write(b"\xff" * (size - 8192))
        found = store.get_many(sample_keys(range(1990, 2000)))
        assert found == [None] * 10 or found == rows_in(None, range(1990, 2000))
        for begin in range(0, 2000, 100):
            store.get_many(sample_keys(range(begin, begin + 100)))
        assert "broken" in store.stats.trouble
        assert store.get_many(sample_keys(range(10))) == [None] * 10
        fill(store, range(10))
        assert store.stats.dropped == 10


NOBODY = 65534


@contextlib.contextmanager
def without_rights(folder: Path) -> Iterator[None]:
    """As a user to whom permissions apply, who may not write in the folder."""
    for path in (*folder.iterdir(), folder):
        path.chmod(0o555)
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if before == 0:
            os.seteuid(before)


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A directory that other users can reach, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@contextlib.contextmanager
def files_limited_to(nbytes: int) -> Iterator[None]:
    """Files cannot grow above this size, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("obstacle", [without_rights, lambda _: files_limited_to(PAGE_BYTES)])
def test_a_store_that_cannot_be_written_is_read(obstacle: Any, public_folder: Path) -> None:
    settings = LabelStore(public_folder / "labels", MIB)
    with LabelDatabase(settings) as store:
        fill(store, range(100))
    with obstacle(public_folder), LabelDatabase(settings) as store:
        assert not store.writable
        assert store.get_many(sample_keys(range(100))) == rows_in(None, range(100))
        fill(store, range(100, 110))
        assert store.stats.dropped == 10


def test_one_that_was_not_closed_or_cannot_be_made_says_so(public_folder: Path) -> None:
    """In a folder that cannot be written."""
    settings = LabelStore(public_folder / "labels", MIB)
    with LabelDatabase(settings) as store:
        fill(store, range(100))
        for end in ("", "-wal"):
            shutil.copy(settings.path + end, str(public_folder / "killed") + end)
    with without_rights(public_folder):
        for name, words in (("killed", "open it once where it can be"), ("new", "unable to open")):
            with pytest.raises(LabelStoreUnavailable, match=words):
                LabelDatabase(LabelStore(public_folder / name, MIB))

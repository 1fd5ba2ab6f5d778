"""An open store: what is put in comes back, within the budget, and nothing else ever does."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from edl.distill_reader.store import LabelStore
from edl.distill_reader.store.database import Database
from edl.distill_reader.store.rows import Content, Model, Row
from edl.distill_reader.store.store import PAUSE_S, Store
from edl.errors import UsageError
from edl.proto.forms import Form
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
def settings_(tmp_path: Path) -> LabelStore:
    return LabelStore(tmp_path / "labels.edl", 64 * MIB)


def fill(store: Store, numbers: range, form: Form | None = None) -> None:
    store.put_many(sample_keys(numbers), rows_in(form, numbers))


def bytes_on_disk(path: str) -> int:
    return sum(os.stat(path + end).st_size for end in ("", "-wal", "-shm") if _is(path + end))


def _is(path: str) -> bool:
    return os.path.exists(path)


def test_what_is_put_in_comes_back_in_any_order_now_and_later(
    settings_: LabelStore, rng: random.Random
) -> None:
    rows = rows_in(None, range(1000))
    keys = sample_keys(range(1000))
    with Store(settings_) as store:
        assert store.get_many(keys) == [None] * 1000
        store.put_many(keys, rows)
        assert store.get_many(keys) == rows
        assert (store.figures.hits, store.figures.misses) == (1000, 1000)
        assert store.figures.written == 1000
    order = rng.choices(range(1000), k=300)  # some more than once
    with Store(settings_) as store:
        assert store.get_many([keys[n] for n in order]) == [rows[n] for n in order]
        assert store.get_many([]) == []
        store.put_many([], [])
    assert not _is(settings_.path + "-wal"), "the last to close tidies up"


def test_a_row_becomes_richer_and_never_poorer(settings_: LabelStore) -> None:
    keys = sample_keys([5])
    topk = Form.parse("topk:5")
    with Store(settings_) as store:
        fill(store, range(5, 6), topk)
        fill(store, range(5, 6), None)
        assert store.get_many(keys) == rows_in(None, [5])
        fill(store, range(5, 6), topk)
        assert store.get_many(keys) == rows_in(None, [5])
        assert store.figures.written == 2
        assert store.figures.dropped == 0


def test_several_open_it_at_once(settings_: LabelStore) -> None:
    with Store(settings_) as one, Store(settings_) as two:
        for number in range(0, 200, 20):
            writer, reader = (one, two) if number % 40 else (two, one)
            fill(writer, range(number, number + 20))
            rows = rows_in(None, range(number, number + 20))
            assert reader.get_many(sample_keys(range(number, number + 20))) == rows


def test_what_a_teacher_has_labelled_goes_when_it_is_disowned(settings_: LabelStore) -> None:
    def made(form: Form | None, numbers: range, maker: str) -> list[Row]:
        return [replace(row, makers=frozenset([maker])) for row in rows_in(form, numbers)]

    topk = Form.parse("topk:5")
    with Store(settings_) as store:
        store.put_many(sample_keys(range(600)), made(None, range(600), "honest"))
        store.put_many(sample_keys(range(600, 1000)), made(None, range(600, 1000), "liar"))
        for maker, form in (("honest", topk), ("liar", None)):  # of these both have a part
            store.put_many(sample_keys(range(1000, 1010)), made(form, range(1000, 1010), maker))
    with Store(settings_) as store:
        store.disown("liar")
        assert store.figures.disowned == 410
        assert store.get_many(sample_keys(range(1010)))[600:] == [None] * 410
        assert store.get_many(sample_keys(range(600))) == rows_in(None, range(600))


def test_the_model_of_a_service_is_remembered(settings_: LabelStore) -> None:
    model = Model(Content("abc", "n"), ("image", "mask"))
    with Store(settings_) as store:
        assert store.recall("s") is None
        store.remember("s", Model(Content("old")))
        store.remember("s", model)
        store.remember("other", Model(Content("x")))
    with Store(settings_) as store:
        assert store.recall("s") == model


# --- what else may stand at the path


@pytest.mark.parametrize("found", [b"some text of the user", b"SQLite format 3\0" + bytes(4080)])
def test_a_foreign_file_is_refused_and_not_touched(tmp_path: Path, found: bytes) -> None:
    path = tmp_path / "mine"
    path.write_bytes(found)
    with pytest.raises(UsageError, match=r"is no label store.*name another path"):
        Store(LabelStore(path, MIB))
    assert path.read_bytes() == found
    assert [one.name for one in tmp_path.iterdir()] == ["mine"]


def test_a_database_of_somebody_else_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    damage(str(path), "CREATE TABLE customers (name)")
    before = path.read_bytes()
    with pytest.raises(UsageError, match="is no label store"):
        Store(LabelStore(path, MIB))
    assert path.read_bytes() == before


def test_a_store_of_another_version_is_refused(settings_: LabelStore) -> None:
    Store(settings_).close()
    damage(settings_.path, "PRAGMA user_version = 9")
    with pytest.raises(UsageError, match="of version 9, this program reads 2"):
        Store(settings_)


def test_an_empty_file_becomes_a_store(settings_: LabelStore) -> None:
    Path(settings_.path).touch()
    with Store(settings_) as store:
        fill(store, range(3))
        assert None not in store.get_many(sample_keys(range(3)))


def test_settings_that_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least 1048576 bytes"):
        LabelStore(tmp_path / "a", 1000)
    with pytest.raises(UsageError, match="is a file"):
        LabelStore(tmp_path, MIB)
    with pytest.raises(UsageError, match="list of fields"):
        LabelStore(tmp_path / "a", MIB, sample_ids="index")
    with pytest.raises(UsageError, match="no directory"):
        Store(LabelStore(tmp_path / "gone" / "a", MIB))


def test_settings_travel(tmp_path: Path) -> None:
    settings = LabelStore(tmp_path / "a", MIB, sample_ids=["index", 3])
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert LabelStore.from_json(settings.to_json()) == settings
    assert settings.sample_ids == ("index", 3)


def test_another_reader_of_this_process_takes_no_lock_away(tmp_path: Path) -> None:
    """As the members of an ensemble share one: SQLite's locks are the process's."""
    path = tmp_path / "labels"

    def locks() -> list[str]:
        inode = f":{os.stat(path).st_ino} "
        return [line for line in Path("/proc/locks").read_text().splitlines() if inode in line]

    with Store(LabelStore(path, MIB)) as one:
        one.get_many(sample_keys([1]))
        assert locks()
        Store(LabelStore(path, MIB)).close()
        assert locks()


def of_liar(numbers: Sequence[int]) -> list[Row]:
    return [replace(row, makers=frozenset(["liar"])) for row in rows_in(None, numbers)]


@pytest.fixture
def with_liar(tmp_path: Path) -> LabelStore:
    """A store in which a liar has labelled the first ten samples."""
    settings = LabelStore(tmp_path / "labels", 64 * MIB)
    with Store(settings) as store:
        store.put_many(sample_keys(range(10)), of_liar(range(10)))
        fill(store, range(10, 20))
    return settings


def test_what_a_liar_has_said_is_not_given_out_though_it_cannot_be_taken_out(
    with_liar: LabelStore, caplog: pytest.LogCaptureFixture, impatient: None
) -> None:
    clock, keys = Clock(), sample_keys(range(20))
    honest = [*[None] * 10, *rows_in(None, range(10, 20))]
    with Store(with_liar, clock) as store:
        with Database(with_liar.path, write=True) as other, other.writing():
            store.disown("liar")
            assert store.figures.disowned == 0, "the file is locked"
            assert store.get_many(keys) == honest
        clock.now += PAUSE_S
        fill(store, range(20, 21))
        assert store.figures.disowned == 10, "it was made up for"
        assert store.get_many(keys) == honest
    assert "still holds labels" not in caplog.text
    with Store(with_liar) as store:
        assert store.get_many(keys) == honest


def test_a_store_that_still_holds_labels_of_a_liar_says_so_at_the_end(
    with_liar: LabelStore, caplog: pytest.LogCaptureFixture, impatient: None
) -> None:
    store = Store(with_liar)
    with Database(with_liar.path, write=True) as other, other.writing():
        store.disown("liar")
        store.close()
    assert "still holds labels of liar: edl store disown" in caplog.text

"""An open store: what is put in comes back, within the budget, and nothing else ever does."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from edl.distill_reader.store import LabelStore
from edl.distill_reader.store.database import PAGE_BYTES, Database
from edl.distill_reader.store.rows import Content, Model, Row
from edl.distill_reader.store.store import PAUSE_S, Store
from edl.distill_reader.store.table import ROW_BYTES
from edl.errors import UsageError
from edl.proto.forms import Form
from edl.scheduler.eviction import USE_STEP_S
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


def large(row: Row, nbytes: int) -> Row:
    """One of about so many bytes, of an output as `row` has it."""
    (entry,) = row.layout.entries
    pieces = (entry.pieces[0]._replace(shape=(nbytes // 4,)),)
    layout = replace(row.layout, entries=(replace(entry, pieces=pieces),))
    return Row(layout, bytes(layout.nbytes))


def brim_over(path: str, max_bytes: int) -> None:
    """Have others take the last free pages of a store."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA max_page_count = {max_bytes // PAGE_BYTES}")
        junk = [(number, bytes([number]) * 3000) for number in range(9, 200)]
        insert = "INSERT INTO layouts VALUES (?, ?)"
        with pytest.raises(sqlite3.OperationalError, match="full"):
            connection.executemany(insert, junk)


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


@pytest.mark.parametrize("step_s", [0, 1, 7, 30, 120, 2 * USE_STEP_S])
def test_the_file_stays_full_and_within_its_budget_and_every_row_is_right(
    tmp_path: Path, rng: random.Random, step_s: int
) -> None:
    """Rows of several sizes come and go, some used lately and some not: ten times the budget."""
    settings = LabelStore(tmp_path / f"labels-{step_s}", MIB)
    forms = [None, None, Form.parse("topk:5")]  # of which no two stand side by side
    clock = Clock()
    with Store(settings, clock) as store:
        for _ in range(150):
            clock.now += step_s
            form, begin = rng.choice(forms), rng.randrange(20_000)
            numbers = range(begin, begin + rng.randrange(1, 500))
            fill(store, numbers, form)
            assert os.stat(settings.path).st_size <= MIB
            assert bytes_on_disk(settings.path) <= MIB + SLACK_BYTES
            looked = rng.sample(numbers, k=min(20, len(numbers)))
            for found, number in zip(store.get_many(sample_keys(looked)), looked, strict=True):
                assert found is None or found in [rows_in(one, [number])[0] for one in forms]
        assert store.figures.evicted > 5_000
        assert (store.figures.dropped, store.figures.damaged) == (0, 0), store.figures.trouble
        held = [row for row in store.get_many(sample_keys(range(20_500))) if row is not None]
    assert sum(len(row.data) + ROW_BYTES for row in held) > 0.6 * MIB


def test_a_file_without_a_single_free_page_makes_room_all_the_same(tmp_path: Path) -> None:
    settings = LabelStore(tmp_path / "labels", MIB)
    with Store(settings) as store:
        fill(store, range(6000))
        brim_over(settings.path, MIB)
        fill(store, range(6000, 7000))
        assert None not in store.get_many(sample_keys(range(6000, 7000)))
        assert (store.figures.dropped, store.figures.damaged) == (0, 0), store.figures.trouble


def test_rows_of_many_pages_make_room_for_small_ones_and_the_other_way_round(
    tmp_path: Path, rng: random.Random
) -> None:
    settings = LabelStore(tmp_path / "labels", 4 * MIB)
    (row,) = rows_in(None, [1])
    with Store(settings) as store:
        for _ in range(60):
            nbytes = rng.choice([100, 5_000, 9_000, 300_000])
            some = [
                large(row, nbytes) for _ in range(rng.randrange(1, 1 + min(500, MIB // nbytes)))
            ]
            keys = [rng.randbytes(16) for _ in some]
            store.put_many(keys, some)
            assert store.get_many(keys) == some
            assert os.stat(settings.path).st_size <= 4 * MIB
        assert (store.figures.dropped, store.figures.damaged) == (0, 0), store.figures.trouble


def test_a_full_store_of_equal_rows_holds_most_of_its_budget(tmp_path: Path) -> None:
    with Store(LabelStore(tmp_path / "labels", MIB)) as store:
        for begin in range(0, 8000, 250):
            fill(store, range(begin, begin + 250))
        rows = store.get_many(sample_keys(range(8000)))
    held = sum(len(row.data) + ROW_BYTES for row in rows if row is not None)
    assert held > 0.65 * MIB


def test_what_was_used_lately_stays(tmp_path: Path) -> None:
    clock = Clock()
    dear = range(200)
    with Store(LabelStore(tmp_path / "labels", MIB), clock) as store:
        fill(store, dear)
        for begin in range(200, 15_000, 250):
            fill(store, range(begin, begin + 250))
            clock.now += USE_STEP_S
            assert None not in store.get_many(sample_keys(dear))
        assert store.figures.evicted > 5_000


def test_of_two_rows_in_a_page_the_one_that_was_used_lately_stays(tmp_path: Path) -> None:
    clock = Clock()
    row = large(rows_in(None, [1])[0], 4000)
    keys = [number.to_bytes(16, "little") for number in range(6000)]
    with Store(LabelStore(tmp_path / "labels", 8 * MIB), clock) as store:
        for begin in range(0, 6000, 200):
            store.put_many(keys[begin : begin + 200], [row] * 200)
            clock.now += USE_STEP_S
            assert None not in store.get_many(keys[0 : min(begin, 800) : 2])
        assert store.figures.evicted > 3_000
        assert (store.figures.dropped, store.figures.damaged) == (0, 0), store.figures.trouble


def test_a_smaller_budget_makes_the_file_smaller(tmp_path: Path) -> None:
    path = tmp_path / "labels"
    numbers = range(10_000)
    rows = rows_in(None, numbers)
    with Store(LabelStore(path, 8 * MIB)) as store:
        store.put_many(sample_keys(numbers), rows)
    assert path.stat().st_size > 2 * MIB
    with Store(LabelStore(path, MIB)) as store:
        assert path.stat().st_size <= MIB
        found = store.get_many(sample_keys(numbers))
        assert 1000 < sum(one is not None for one in found) < 5000
        assert all(one in (None, row) for one, row in zip(found, rows, strict=True))


def test_a_row_that_is_too_large_for_the_store_is_not_kept(tmp_path: Path) -> None:
    with Store(LabelStore(tmp_path / "labels", MIB)) as store:
        (row,) = rows_in(None, [1])
        store.put_many([b"k" * 16], [large(row, 1_200_000)])
        assert store.figures.dropped == 1
        assert "too large" in store.figures.trouble
        assert store.get_many([b"k" * 16]) == [None]


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


def test_rows_that_no_key_leads_to_are_the_first_that_make_room(tmp_path: Path) -> None:
    """As where a damaged key was written anew: whatever was used lately, they were not."""
    path, numbers = tmp_path / "labels", range(2000)
    with Store(LabelStore(path, 64 * MIB)) as store:
        fill(store, range(10_000, 16_000))
        damage(str(path), "DELETE FROM keys")
        fill(store, numbers)
    assert path.stat().st_size > 1.5 * MIB
    with Store(LabelStore(path, MIB)) as store:
        assert path.stat().st_size <= MIB
        assert store.get_many(sample_keys(numbers)) == rows_in(None, numbers)
        fill(store, range(2000, 4000))
        assert None not in store.get_many(sample_keys(range(3500, 4000)))
        assert (store.figures.dropped, store.figures.damaged) == (0, 0), store.figures.trouble

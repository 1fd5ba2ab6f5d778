"""Stores that are full, or whose file or disk is damaged, over thousands of rows."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from edl.distill_reader.store import LabelStore
from edl.distill_reader.store.database import PAGE_BYTES
from edl.distill_reader.store.rows import LabelRow
from edl.distill_reader.store.store import PAUSE_S, LabelDatabase
from edl.distill_reader.store.table import ROW_BYTES
from edl.proto.forms import LabelForm
from edl.runtime.errors import LabelStoreUnavailable, StoreDamaged, UsageError
from edl.scheduler.label_cache import USE_STEP_S
from edl.tests.distill_reader.store.samples import damage, rows_in, sample_keys
from edl.tests.distill_reader.store.test_store import (
    MIB,
    SLACK_BYTES,
    Clock,
    bytes_on_disk,
    files_limited_to,
    fill,
)

pytestmark = pytest.mark.system


def large(row: LabelRow, nbytes: int) -> LabelRow:
    """One of about so many bytes, of an output as `row` has it."""
    (entry,) = row.layout.entries
    pieces = (entry.pieces[0]._replace(shape=(nbytes // 4,)),)
    layout = replace(row.layout, entries=(replace(entry, pieces=pieces),))
    return LabelRow(layout, bytes(layout.nbytes))


def brim_over(path: str, max_bytes: int) -> None:
    """Have others take the last free pages of a store."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA max_page_count = {max_bytes // PAGE_BYTES}")
        junk = [(number, bytes([number]) * 3000) for number in range(9, 200)]
        insert = "INSERT INTO layouts VALUES (?, ?)"
        with pytest.raises(sqlite3.OperationalError, match="full"):
            connection.executemany(insert, junk)


@pytest.mark.parametrize("step_s", [0, 1, 7, 30, 120, 2 * USE_STEP_S])
def test_full_store_keeps_to_its_budget(tmp_path: Path, rng: random.Random, step_s: int) -> None:
    """Rows of several sizes come and go, some used lately and some not: ten times the budget."""
    settings = LabelStore(tmp_path / f"labels-{step_s}", MIB)
    forms = [None, None, LabelForm.parse("topk:5")]  # of which no two stand side by side
    clock = Clock()
    with LabelDatabase(settings, clock) as store:
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
        assert store.stats.evicted > 5_000
        assert (store.stats.dropped, store.stats.damaged) == (0, 0), store.stats.trouble
        held = [row for row in store.get_many(sample_keys(range(20_500))) if row is not None]
    assert sum(len(row.data) + ROW_BYTES for row in held) > 0.6 * MIB


def test_a_file_without_a_single_free_page_makes_room_all_the_same(tmp_path: Path) -> None:
    settings = LabelStore(tmp_path / "labels", MIB)
    with LabelDatabase(settings) as store:
        fill(store, range(6000))
        brim_over(settings.path, MIB)
        fill(store, range(6000, 7000))
        assert None not in store.get_many(sample_keys(range(6000, 7000)))
        assert (store.stats.dropped, store.stats.damaged) == (0, 0), store.stats.trouble


def test_large_and_small_rows_make_room_for_each_other(tmp_path: Path, rng: random.Random) -> None:
    settings = LabelStore(tmp_path / "labels", 4 * MIB)
    (row,) = rows_in(None, [1])
    with LabelDatabase(settings) as store:
        for _ in range(60):
            nbytes = rng.choice([100, 5_000, 9_000, 300_000])
            some = [
                large(row, nbytes) for _ in range(rng.randrange(1, 1 + min(500, MIB // nbytes)))
            ]
            keys = [rng.randbytes(16) for _ in some]
            store.put_many(keys, some)
            assert store.get_many(keys) == some
            assert os.stat(settings.path).st_size <= 4 * MIB
        assert (store.stats.dropped, store.stats.damaged) == (0, 0), store.stats.trouble


def test_of_two_rows_in_a_page_the_one_that_was_used_lately_stays(tmp_path: Path) -> None:
    clock = Clock()
    row = large(rows_in(None, [1])[0], 4000)
    keys = [number.to_bytes(16, "little") for number in range(6000)]
    with LabelDatabase(LabelStore(tmp_path / "labels", 8 * MIB), clock) as store:
        for begin in range(0, 6000, 200):
            store.put_many(keys[begin : begin + 200], [row] * 200)
            clock.now += USE_STEP_S
            assert None not in store.get_many(keys[0 : min(begin, 800) : 2])
        assert store.stats.evicted > 3_000
        assert (store.stats.dropped, store.stats.damaged) == (0, 0), store.stats.trouble


def test_a_smaller_budget_makes_the_file_smaller(tmp_path: Path) -> None:
    path = tmp_path / "labels"
    numbers = range(10_000)
    rows = rows_in(None, numbers)
    with LabelDatabase(LabelStore(path, 8 * MIB)) as store:
        store.put_many(sample_keys(numbers), rows)
    assert path.stat().st_size > 2 * MIB
    with LabelDatabase(LabelStore(path, MIB)) as store:
        assert path.stat().st_size <= MIB
        found = store.get_many(sample_keys(numbers))
        assert 1000 < sum(one is not None for one in found) < 5000
        assert all(one in (None, row) for one, row in zip(found, rows, strict=True))


def test_a_row_that_is_too_large_for_the_store_is_not_kept(tmp_path: Path) -> None:
    with LabelDatabase(LabelStore(tmp_path / "labels", MIB)) as store:
        (row,) = rows_in(None, [1])
        store.put_many([b"k" * 16], [large(row, 1_200_000)])
        assert store.stats.dropped == 1
        assert "too large" in store.stats.trouble
        assert store.get_many([b"k" * 16]) == [None]


def test_rows_that_no_key_leads_to_are_the_first_that_make_room(tmp_path: Path) -> None:
    """As where a damaged key was written anew: whatever was used lately, they were not."""
    path, numbers = tmp_path / "labels", range(2000)
    with LabelDatabase(LabelStore(path, 64 * MIB)) as store:
        fill(store, range(10_000, 16_000))
        damage(str(path), "DELETE FROM keys")
        fill(store, numbers)
    assert path.stat().st_size > 1.5 * MIB
    with LabelDatabase(LabelStore(path, MIB)) as store:
        assert path.stat().st_size <= MIB
        assert store.get_many(sample_keys(numbers)) == rows_in(None, numbers)
        fill(store, range(2000, 4000))
        assert None not in store.get_many(sample_keys(range(3500, 4000)))
        assert (store.stats.dropped, store.stats.damaged) == (0, 0), store.stats.trouble


def test_flipped_bytes_make_no_wrong_label(tmp_path: Path, rng: random.Random) -> None:
    settings = LabelStore(tmp_path / "labels.edl", 64 * MIB)
    keys, rows = sample_keys(range(400)), rows_in(None, range(400))
    with LabelDatabase(settings) as store:
        store.put_many(keys, rows)
    good = Path(settings.path).read_bytes()
    refused = lost = 0
    for _ in range(40):
        bad = bytearray(good)
        for _ in range(rng.randrange(1, 40)):
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        if rng.random() < 0.3:
            del bad[rng.randrange(len(bad)) :]
        Path(settings.path).write_bytes(bad)
        try:
            with LabelDatabase(settings) as store:
                found = store.get_many(keys)
                store.put_many(keys, rows)
                found += store.get_many(keys)
        except (StoreDamaged, LabelStoreUnavailable, UsageError):
            refused += 1
        else:
            lost += found.count(None)
            assert all(one in (None, row) for one, row in zip(found, rows * 2, strict=True))
        for end in ("-wal", "-shm"):
            Path(settings.path + end).unlink(missing_ok=True)
    assert lost or refused


def test_a_disk_that_refuses_costs_new_rows_and_no_old_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left alone for a while then; each change is logged once."""
    caplog.set_level("INFO")

    def said(words: str) -> int:
        return sum(words in record.message for record in caplog.records)

    clock = Clock()
    with LabelDatabase(LabelStore(tmp_path / "labels", 64 * MIB), clock) as store:
        fill(store, range(1000))
        for times in (1, 2):
            with files_limited_to(2 * times * MIB):
                for begin in range(20_000 * times, 20_000 * (times + 1), 1000):
                    clock.now += PAUSE_S / 3
                    fill(store, range(begin, begin + 1000))
                assert said("labels are not kept") == times
                assert "cannot be used now" in store.stats.trouble
                assert store.get_many(sample_keys(range(1000))) == rows_in(None, range(1000))
                assert (dropped := store.stats.dropped) > 0
                fill(store, range(1000, 1100))
                assert store.stats.dropped == dropped + 100
            clock.now += PAUSE_S
            late = range(80_000 + 1000 * times, 81_000 + 1000 * times)
            fill(store, late)
            assert said("can be used again") == times
            assert (store.stats.trouble, store.stats.dropped) == ("", dropped + 100)
            assert store.get_many(sample_keys(late)) == rows_in(None, late)
        numbers = range(20_000, 60_000)
        found, rows = store.get_many(sample_keys(numbers)), rows_in(None, numbers)
        assert all(one in (None, row) for one, row in zip(found, rows, strict=True))


def test_a_clock_that_is_set_back_makes_the_pause_after_an_error_no_longer(tmp_path: Path) -> None:
    clock = Clock()
    with LabelDatabase(LabelStore(tmp_path / "labels", 64 * MIB), clock) as store:
        with files_limited_to(MIB):
            fill(store, range(20_000))
        assert (dropped := store.stats.dropped) > 0
        clock.now -= 3600.0
        fill(store, range(20_000, 20_100))
        assert (store.stats.trouble, store.stats.dropped) == ("", dropped)

"""Files that are damaged: a row is right or missing, and nothing else is believed either."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from edl.distill_reader.store import LabelStore
from edl.distill_reader.store.rows import Content, Model
from edl.distill_reader.store.store import Store
from edl.errors import StoreDamaged, StoreUnavailable, UsageError
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


def test_bytes_that_flip_anywhere_never_make_a_wrong_label(
    settings_: LabelStore, rng: random.Random
) -> None:
    numbers = range(400)
    keys, rows = sample_keys(numbers), rows_in(None, numbers)
    with Store(settings_) as store:
        store.put_many(keys, rows)
    good = Path(settings_.path).read_bytes()
    refused = lost = 0
    for _ in range(40):
        bad = bytearray(good)
        for _ in range(rng.randrange(1, 40)):
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        if rng.random() < 0.3:
            del bad[rng.randrange(len(bad)) :]
        Path(settings_.path).write_bytes(bad)
        try:
            with Store(settings_) as store:
                found = store.get_many(keys)
                store.put_many(keys, rows)
                found += store.get_many(keys)
        except (StoreDamaged, StoreUnavailable, UsageError):
            refused += 1
        else:
            lost += found.count(None)
            assert all(one in (None, row) for one, row in zip(found, rows * 2, strict=True))
        for end in ("-wal", "-shm"):
            Path(settings_.path + end).unlink(missing_ok=True)
    assert lost or refused


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

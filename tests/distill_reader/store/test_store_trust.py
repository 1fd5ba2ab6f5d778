"""Rows of a teacher that is not believed, and files that were allowed to be larger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from edl.distill_reader.store import LabelStore
from edl.distill_reader.store.database import Database
from edl.distill_reader.store.rows import Row
from edl.distill_reader.store.store import PAUSE_S, Store
from edl.tests.distill_reader.store.samples import rows_in, sample_keys
from edl.tests.distill_reader.store.test_store import Clock, fill

MIB = 1 << 20


def of_liar(numbers: Sequence[int]) -> list[Row]:
    return [replace(row, makers=frozenset(["liar"])) for row in rows_in(None, numbers)]


@pytest.fixture
def settings_(tmp_path: Path) -> LabelStore:
    """A store in which a liar has labelled the first ten samples."""
    settings = LabelStore(tmp_path / "labels", 64 * MIB)
    with Store(settings) as store:
        store.put_many(sample_keys(range(10)), of_liar(range(10)))
        fill(store, range(10, 20))
    return settings


def test_what_a_liar_has_said_is_not_given_out_though_it_cannot_be_taken_out(
    settings_: LabelStore, caplog: pytest.LogCaptureFixture
) -> None:
    clock, keys = Clock(), sample_keys(range(20))
    honest = [*[None] * 10, *rows_in(None, range(10, 20))]
    with Store(settings_, clock) as store:
        store._database.execute("PRAGMA busy_timeout = 50")
        with Database(settings_.path, write=True) as other, other.writing():
            store.disown("liar")
            assert store.figures.disowned == 0, "the file is locked"
            assert store.get_many(keys) == honest
        clock.now += PAUSE_S
        fill(store, range(20, 21))
        assert store.figures.disowned == 10, "it was made up for"
        assert store.get_many(keys) == honest
    assert "still holds labels" not in caplog.text
    with Store(settings_) as store:
        assert store.get_many(keys) == honest


def test_a_store_that_still_holds_labels_of_a_liar_says_so_at_the_end(
    settings_: LabelStore, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(settings_)
    store._database.execute("PRAGMA busy_timeout = 50")
    with Database(settings_.path, write=True) as other, other.writing():
        store.disown("liar")
        store.close()
    assert "still holds labels of liar: edl store disown" in caplog.text


def test_rows_that_no_key_leads_to_are_the_first_that_make_room(tmp_path: Path) -> None:
    """As where a damaged key was written anew: whatever was used lately, they were not."""
    path, numbers = tmp_path / "labels", range(2000)
    with Store(LabelStore(path, 64 * MIB)) as store:
        fill(store, range(10_000, 16_000))
        store._database.execute("DELETE FROM keys")
        fill(store, numbers)
    assert path.stat().st_size > 1.5 * MIB
    with Store(LabelStore(path, MIB)) as store:
        assert path.stat().st_size <= MIB
        assert store.get_many(sample_keys(numbers)) == rows_in(None, numbers)
        fill(store, range(2000, 4000))
        assert None not in store.get_many(sample_keys(range(3500, 4000)))
        assert (store.figures.dropped, store.figures.damaged) == (0, 0), store.figures.trouble

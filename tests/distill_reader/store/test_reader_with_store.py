"""Readers with a label store: a real engine, a real file, and teachers that count."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import DistilReader, LabelStore
from edl.distill_reader.options import Timeouts
from edl.distill_reader.store.database import Database
from edl.proto.arena import Array
from edl.runtime.errors import NoTeacherAvailable, UsageError
from edl.tests.distill_reader.conftest import StartTeacher
from edl.tests.distill_reader.readers import NOBODY, reader_of
from edl.tests.scripted_teacher import ScriptedTeacher, logits_of
from edl.tests.waiting import wait_until

pytestmark = pytest.mark.system

SAMPLES = 120


class Shuffled:
    """Samples as (x, id) batches, in any order and of any size, which a test may change."""

    def __init__(self, order: Sequence[int], size: int) -> None:
        self.shuffle(order, size)

    def shuffle(self, order: Sequence[int], size: int) -> None:
        self.order, self.size = np.asarray(order), size

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self.order), self.size):
            numbers = self.order[start : start + self.size]
            yield x_of(numbers), numbers


def x_of(numbers: Array) -> Array:
    return np.stack([numbers, numbers * 2, numbers + 1], axis=1).astype(np.float32)


def orders(seed: int) -> list[int]:
    return random.Random(seed).sample(range(SAMPLES), SAMPLES)


@pytest.fixture
def teacher(start_teacher: StartTeacher) -> ScriptedTeacher:
    teacher = start_teacher()
    teacher.parameters = {"content_id": "model-1"}
    return teacher


@pytest.fixture
def store(tmp_path: Path) -> LabelStore:
    return LabelStore(tmp_path / "labels.edl", 64 << 20)


def fill(store: LabelStore, teacher: ScriptedTeacher, source: Shuffled) -> None:
    """Have a reader label all of `source`."""
    with reader_of(source, teacher, store=store) as reader:
        check(list(reader), source)


def check(batches: list[Any], source: Shuffled, factor: int = 1) -> None:
    """Every sample once, in order, with labels of its own."""
    np.testing.assert_array_equal(np.concatenate([ids for _, ids, _ in batches]), source.order)
    for x, ids, soft in batches:
        np.testing.assert_array_equal(x, x_of(ids))
        np.testing.assert_array_equal(soft, logits_of(x) * factor)


def by_id(reader: DistilReader) -> dict[int, Array]:
    """The labels of each sample."""
    return {int(i): row for _, ids, soft in reader for i, row in zip(ids, soft, strict=True)}


def check_same(reader: DistilReader, first: dict[int, Array]) -> None:
    again = by_id(reader)
    assert again.keys() == first.keys()
    for number, row in again.items():
        np.testing.assert_array_equal(row, first[number])


def test_later_epochs_and_readers_ask_nobody(teacher: ScriptedTeacher, store: LabelStore) -> None:
    """In another order, and of other batch sizes."""
    source = Shuffled(orders(1), 7)
    with reader_of(source, teacher, store=store) as reader:
        check(list(reader), source)
        asked = teacher.requests
        assert asked >= SAMPLES / 7
        for seed, size in ((2, 10), (3, 1), (4, 120)):
            source.shuffle(orders(seed), size)
            check(list(reader), source)
        assert teacher.requests == asked
        assert reader.stats.store_hits == 3 * SAMPLES
    fill(store, teacher, Shuffled(orders(2), 8))
    assert teacher.requests == asked + 1, "one batch is sent to learn of which model labels are"
    teacher.stop()
    with reader_of(source, NOBODY, store=store) as reader:
        check(list(reader), source)
        wait_until(lambda: reader.stats.content_id == "model-1")


def test_no_content_id_keeps_no_labels(teacher: ScriptedTeacher, store: LabelStore) -> None:
    teacher.parameters = {}
    source = Shuffled(range(60), 10)
    with reader_of(source, teacher, store=store) as reader:
        for _ in range(2):
            check(list(reader), source)
    assert teacher.requests == 12


def test_samples_by_the_users_ids(teacher: ScriptedTeacher, tmp_path: Path) -> None:
    class Noisy(Shuffled):
        """The same sample never looks the same twice: only its id tells which it is."""

        def __iter__(self) -> Iterator[Any]:
            for x, numbers in super().__iter__():
                yield x + np.random.default_rng().random(x.shape, np.float32), numbers

    store = LabelStore(tmp_path / "labels", 64 << 20, sample_ids=[1])
    source = Noisy(orders(1), 10)
    with reader_of(source, teacher, store=store) as reader:
        first, asked = by_id(reader), teacher.requests
        source.shuffle(orders(2), 8)
        check_same(reader, first)
    assert teacher.requests == asked


@pytest.mark.parametrize("no_teacher", ["fail", "hard_only"])
def test_store_before_policy(teacher: ScriptedTeacher, store: LabelStore, no_teacher: str) -> None:
    fill(store, teacher, Shuffled(range(60), 10))
    source = Shuffled(range(59, -1, -1), 7)
    options = {"no_teacher": no_teacher, "timeouts": Timeouts(no_teacher_s=0.0)}
    with reader_of(source, NOBODY, store=store, **options) as reader:
        check(list(reader), source)


# --- errors and damage


@pytest.mark.parametrize(
    ("sample_ids", "content", "words"),
    [
        (["index"], b"", "names field 'index', a batch has the arrays"),
        ((), b"all my work", "is no label store"),
    ],
)
def test_a_store_that_does_not_fit_is_an_error_of_the_loop(
    teacher: ScriptedTeacher, tmp_path: Path, sample_ids: Any, content: bytes, words: str
) -> None:
    path = tmp_path / "thesis.txt"
    path.write_bytes(content)
    store = LabelStore(path, 64 << 20, sample_ids=sample_ids)
    with (
        reader_of(Shuffled(range(60), 10), teacher, store=store) as reader,
        pytest.raises(UsageError, match=words),
    ):
        list(reader)
    assert not content or path.read_bytes() == content


@pytest.mark.parametrize("opened", [True, False])
def test_the_training_is_told_once_that_labels_are_not_kept(
    teacher: ScriptedTeacher, store: LabelStore, caplog: pytest.LogCaptureFixture, opened: bool
) -> None:
    """Another process holds the file, from before the reader opens it or from later on."""
    source = Shuffled(orders(1), 10)
    fill(store, teacher, Shuffled(range(1), 1))
    with closing(Database(store.path, write=True)) as other, ExitStack() as stack:
        if not opened:
            stack.enter_context(other.writing())
        with reader_of(source, teacher, store=store) as reader:
            check(list(reader), source)
            if opened:
                wait_until(lambda: reader.stats.store_misses >= SAMPLES - 11)
                assert not reader.stats.store_trouble
                stack.enter_context(other.writing())
            for epoch in (1, 2):
                source.shuffle(range(epoch * SAMPLES, (epoch + 1) * SAMPLES), 10)
                check(list(reader), source)
            wait_until(lambda: reader.stats.store_dropped >= 2 * SAMPLES)
            assert "locked" in reader.stats.store_trouble
    assert sum("cannot be used now" in record.message for record in caplog.records) == 1


def test_left_epochs_leave_no_wrong_label(teacher: ScriptedTeacher, store: LabelStore) -> None:
    """The ring's memory is used again at once: keys must be of what was labelled."""
    source = Shuffled(orders(1), 4)
    with reader_of(source, teacher, store=store, upper_bytes=4096) as reader:
        for seed in range(40):
            source.shuffle(orders(seed), 4)
            for count, (x, _, soft) in enumerate(reader):
                np.testing.assert_array_equal(soft, logits_of(x))
                if count == seed % 5:
                    break
    kept = Shuffled(range(SAMPLES), 10)
    with (
        reader_of(kept, NOBODY, store=store, timeouts=Timeouts(wait_s=3.0)) as reader,
        suppress(NoTeacherAvailable),  # of a sample that no epoch came to
    ):
        for x, _, soft in reader:
            np.testing.assert_array_equal(soft, logits_of(x))

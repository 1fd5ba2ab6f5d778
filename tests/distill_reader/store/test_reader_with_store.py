"""`DistilReader(store=...)`: a real engine, real gRPC, a real file; teachers that count."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import DistilReader, LabelStore
from edl.distill_reader.store.database import Database
from edl.distill_reader.store.looking import verify
from edl.errors import NoTeacherAvailable, UsageError
from edl.proto.datatypes import Array
from edl.tests.scripted_teacher import ScriptedTeacher, logits_of
from edl.tests.waiting import wait_until

SAMPLES = 120
DEAD = "127.0.0.1:1"  # where nobody listens


class Shuffled:
    """Samples 0 to SAMPLES - 1 as (x, id) batches, in an order and of a size of one's choice."""

    def __init__(self, order: Sequence[int], size: int) -> None:
        self.order = np.asarray(order)
        self.size = size

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self.order), self.size):
            numbers = self.order[start : start + self.size]
            yield x_of(numbers), numbers


def x_of(numbers: Array) -> Array:
    return np.stack([numbers, numbers * 2, numbers + 1], axis=1).astype(np.float32)


def orders(seed: int) -> list[int]:
    return random.Random(seed).sample(range(SAMPLES), SAMPLES)


@pytest.fixture
def teacher() -> Iterator[ScriptedTeacher]:
    teacher = ScriptedTeacher()
    teacher.parameters = {"content_id": "model-1"}
    yield teacher
    teacher.stop()


@pytest.fixture
def store(tmp_path: Path) -> LabelStore:
    return LabelStore(tmp_path / "labels.edl", 64 << 20)


def reader_of(
    source: Any, store: LabelStore, *teachers: ScriptedTeacher, **options: Any
) -> DistilReader:
    addresses = [teacher.address for teacher in teachers] or [DEAD]
    return DistilReader(source, service="s", teachers=addresses, store=store, **options)


def check(batches: list[Any], source: Shuffled) -> None:
    """Every sample once, in order, with labels of its own."""
    ids = np.concatenate([ids for _, ids, _ in batches])
    np.testing.assert_array_equal(ids, source.order)
    for x, ids, soft in batches:
        np.testing.assert_array_equal(x, x_of(ids))
        np.testing.assert_array_equal(soft, logits_of(x))


def test_a_second_epoch_reshuffled_and_of_another_batch_size_asks_nobody(
    teacher: ScriptedTeacher, store: LabelStore
) -> None:
    source = Shuffled(orders(1), 7)
    with reader_of(source, store, teacher) as reader:
        check(list(reader), source)
        asked = teacher.requests
        assert asked >= SAMPLES / 7
        for seed, size in ((2, 10), (3, 1), (4, 120)):
            source.order, source.size = np.asarray(orders(seed)), size
            check(list(reader), source)
        assert teacher.requests == asked
        assert reader.stats.store_hits == 3 * SAMPLES


def test_another_reader_finds_what_the_first_has_kept(
    teacher: ScriptedTeacher, store: LabelStore
) -> None:
    source = Shuffled(orders(1), 10)
    with reader_of(source, store, teacher) as reader:
        check(list(reader), source)
    asked = teacher.requests
    with reader_of(Shuffled(orders(2), 8), store, teacher) as reader:
        check(list(reader), Shuffled(orders(2), 8))
    assert teacher.requests == asked + 1, "one batch is sent to learn of which model labels are"


def test_only_samples_that_are_missing_are_sent(
    teacher: ScriptedTeacher, store: LabelStore
) -> None:
    rows: list[int] = []
    plain = teacher.behaviour

    def counted(request: Any) -> dict[str, Array]:
        rows.append(len(request.inputs["x"]))
        return plain(request)

    teacher.behaviour = counted
    source = Shuffled(range(0, SAMPLES, 2), 10)
    with reader_of(source, store, teacher) as reader:
        check(list(reader), source)
        assert sum(rows) == SAMPLES / 2
        source.order, source.size = np.arange(SAMPLES), 9
        check(list(reader), source)
    assert sum(rows) == SAMPLES


def test_a_filled_store_serves_with_all_teachers_off(
    teacher: ScriptedTeacher, store: LabelStore
) -> None:
    with reader_of(Shuffled(orders(1), 10), store, teacher) as reader:
        curve = losses(reader)
    teacher.stop()
    with reader_of(Shuffled(orders(1), 10), store) as reader:
        assert losses(reader) == curve
        wait_until(lambda: reader.stats.content_id == "model-1")
    with reader_of(Shuffled(orders(2), 6), store) as reader:
        check(list(reader), Shuffled(orders(2), 6))


def losses(reader: DistilReader) -> list[float]:
    """Of a small student that learns from the labels: any other bit in them gives another curve."""
    weights = np.zeros((3, 10))
    curve = []
    for x, _, soft in reader:
        error = x @ weights - soft
        curve.append(float((error**2).mean()))
        weights -= 1e-5 * x.T @ error
    return curve


def test_what_the_store_lacks_waits_for_a_teacher(
    teacher: ScriptedTeacher, store: LabelStore
) -> None:
    with reader_of(Shuffled(range(60), 10), store, teacher) as reader:
        list(reader)
    teacher.stop()
    with reader_of(Shuffled(range(SAMPLES), 10), store, wait_timeout_s=3.0) as reader:
        iterator = iter(reader)
        for _ in range(6):
            x, _, soft = next(iterator)
            np.testing.assert_array_equal(soft, logits_of(x))
        with pytest.raises(NoTeacherAvailable):
            next(iterator)


def test_labels_of_another_model_are_not_used(teacher: ScriptedTeacher, store: LabelStore) -> None:
    with reader_of(Shuffled(range(60), 10), store, teacher) as reader:
        list(reader)
    teacher.parameters = {"content_id": "model-2"}
    teacher.behaviour = lambda request: {"logits": logits_of(request.inputs["x"]) * 2}
    with reader_of(Shuffled(range(60), 10), store, teacher) as reader:
        for x, _, soft in reader:
            np.testing.assert_array_equal(soft, logits_of(x) * 2)


def test_teachers_that_do_not_say_which_model_they_are_are_not_kept(store: LabelStore) -> None:
    teacher = ScriptedTeacher()
    try:
        source = Shuffled(range(60), 10)
        with reader_of(source, store, teacher) as reader:
            for _ in range(2):
                check(list(reader), source)
        assert teacher.requests == 12
    finally:
        teacher.stop()


@pytest.mark.parametrize("expand", [True, False])
def test_poorer_forms_come_from_what_is_kept(
    teacher: ScriptedTeacher, store: LabelStore, expand: bool
) -> None:
    with reader_of(Shuffled(range(60), 10), store, teacher) as reader:
        list(reader)
    fresh = LabelStore(store.path + "-other", 64 << 20)
    options = {"label_form": "topk:3", "temperature": 2.0, "expand_labels": expand}
    with reader_of(Shuffled(range(60), 12), fresh, teacher, **options) as reader:
        told = [batch[2:] for batch in reader]
    asked = teacher.requests
    teacher.stop()
    with reader_of(Shuffled(range(60), 12), store, **options) as reader:
        for batch, wanted in zip(reader, told, strict=True):
            assert len(batch) == 2 + len(wanted)
            for one, other in zip(batch[2:], wanted, strict=True):
                assert one.dtype == other.dtype
                np.testing.assert_array_equal(one, other)
    assert teacher.requests == asked


def test_samples_by_the_users_ids(teacher: ScriptedTeacher, tmp_path: Path) -> None:
    class Noisy(Shuffled):
        """The same sample never looks the same twice: only its id says which it is."""

        def __iter__(self) -> Iterator[Any]:
            for x, numbers in super().__iter__():
                yield x + np.random.default_rng().random(x.shape, np.float32), numbers

    store = LabelStore(tmp_path / "labels", 64 << 20, sample_ids=[1])
    source = Noisy(orders(1), 10)
    with reader_of(source, store, teacher) as reader:
        first = {
            int(i): soft for _, ids, labels in reader for i, soft in zip(ids, labels, strict=True)
        }
        asked = teacher.requests
        source.order, source.size = np.asarray(orders(2)), 8
        for _, ids, labels in reader:
            for number, soft in zip(ids, labels, strict=True):
                np.testing.assert_array_equal(soft, first[int(number)])
    assert teacher.requests == asked


def test_ids_that_a_batch_does_not_have(teacher: ScriptedTeacher, tmp_path: Path) -> None:
    store = LabelStore(tmp_path / "labels", 64 << 20, sample_ids=["index"])
    with (
        reader_of(Shuffled(range(60), 10), store, teacher) as reader,
        pytest.raises(UsageError, match="names field 'index', a batch has the arrays"),
    ):
        list(reader)


@pytest.mark.parametrize("no_teacher", ["fail", "hard_only"])
def test_no_policy_for_want_of_teachers_goes_before_the_store(
    teacher: ScriptedTeacher, store: LabelStore, no_teacher: str
) -> None:
    with reader_of(Shuffled(range(60), 10), store, teacher) as reader:
        list(reader)
    teacher.stop()
    source = Shuffled(range(59, -1, -1), 7)
    options = {"no_teacher": no_teacher, "no_teacher_grace_s": 0.0}
    with reader_of(source, store, **options) as reader:
        check(list(reader), source)


def test_each_service_of_several_has_rows_of_its_own(
    teacher: ScriptedTeacher, store: LabelStore
) -> None:
    second = ScriptedTeacher(lambda request: {"logits": 2 * logits_of(request.inputs["x"])})
    second.parameters = {"content_id": "model-2"}
    asked: dict[str, Any] = {
        "service": {"a": 0.75, "b": 0.25},
        "teachers": {"a": [teacher.address], "b": [second.address]},
        "store": store,
    }
    try:
        source = Shuffled(orders(1), 10)
        with DistilReader(source, **asked) as reader:
            first = {
                int(i): row for _, ids, soft in reader for i, row in zip(ids, soft, strict=True)
            }
            counts = teacher.requests, second.requests
            source.order, source.size = np.asarray(orders(2)), 7
            for _, ids, soft in reader:
                np.testing.assert_array_equal(soft, np.stack([first[int(i)] for i in ids]))
            assert (teacher.requests, second.requests) == counts
    finally:
        second.stop()


def test_a_foreign_file_is_an_error_and_stays_as_it_is(
    teacher: ScriptedTeacher, tmp_path: Path
) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("all my work")
    with (
        reader_of(Shuffled(range(60), 10), LabelStore(path, 64 << 20), teacher) as reader,
        pytest.raises(UsageError, match="is no label store"),
    ):
        list(reader)
    assert path.read_text() == "all my work"


def test_a_broken_store_costs_teachers_and_nothing_else(
    teacher: ScriptedTeacher, store: LabelStore
) -> None:
    source = Shuffled(orders(1), 10)
    with reader_of(source, store, teacher) as reader:
        check(list(reader), source)
    with open(store.path, "r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 40_000)
    with reader_of(source, store, teacher) as reader:
        check(list(reader), source)
        wait_until(lambda: "broken" in reader.stats.store_trouble)


def test_an_engine_that_is_killed_leaves_a_store_without_a_wrong_label(
    teacher: ScriptedTeacher, store: LabelStore
) -> None:
    source = Shuffled(orders(1), 5)
    with reader_of(source, store, teacher) as reader:
        for epoch in range(3):
            source.order = np.asarray(orders(epoch))
            iterator = iter(reader)
            batches = [next(iterator) for _ in range(4 + epoch)]
            os.kill(reader.engine_pid, signal.SIGKILL)
            check([*batches, *iterator], source)
        check(list(reader), source)  # labels of the last half second died with the engine
    with Database(store.path) as database:
        verify(database, lambda rows: None)
    teacher.stop()
    with reader_of(source, store) as reader:
        check(list(reader), source)


def test_left_epochs_leave_no_wrong_label(teacher: ScriptedTeacher, store: LabelStore) -> None:
    """The ring's memory is used again at once: keys must be of what was labelled."""
    source = Shuffled(orders(1), 4)
    with reader_of(source, store, teacher, upper_bytes=4096) as reader:
        for seed in range(40):
            source.order = np.asarray(orders(seed))
            for count, (x, _, soft) in enumerate(reader):
                np.testing.assert_array_equal(soft, logits_of(x))
                if count == seed % 5:
                    break
    teacher.stop()
    with reader_of(Shuffled(range(SAMPLES), 10), store, wait_timeout_s=3.0) as reader:
        try:
            for x, _, soft in reader:
                np.testing.assert_array_equal(soft, logits_of(x))
        except NoTeacherAvailable:
            pass

"""Teachers get requests of their own size, and the student its own batches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import DistilReader
from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.engine.speeds import Speeds
from edl.errors import PoisonBatch, RequestRefused, RetryableError, UsageError
from edl.proto.arena import Array
from edl.proto.tensors import InferRequest
from edl.tests.distill_reader.test_reader import ROWS, Batches, check_epoch, reader_of
from edl.tests.scripted_teacher import ScriptedTeacher, label, logits_of


class Sizes:
    """Labels, and keeps how many rows each request had."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self._lock = threading.Lock()

    def __call__(self, request: InferRequest) -> dict[str, Array]:
        with self._lock:
            self.rows.append(len(request.inputs["x"]))
        return label(request)


@pytest.fixture
def sizes() -> Sizes:
    return Sizes()


@pytest.fixture
def teacher(sizes: Sizes) -> Iterator[ScriptedTeacher]:
    teacher = ScriptedTeacher(sizes)
    yield teacher
    teacher.stop()


@pytest.mark.parametrize("rows", [1, 3, ROWS, 10, 64])
@pytest.mark.parametrize("shared_memory", [True, False])
def test_batches_are_cut_and_joined_and_come_back_as_they_were(
    teacher: ScriptedTeacher, sizes: Sizes, rows: int, shared_memory: bool
) -> None:
    source = Batches(30)
    with reader_of(source, teacher, teacher_batch_size=rows, shared_memory=shared_memory) as reader:
        for _ in range(2):
            check_epoch(source, list(reader))
    assert max(sizes.rows) <= rows
    assert sum(sizes.rows) >= 60 * ROWS
    if rows == 1:
        assert set(sizes.rows) == {1}
    if rows > ROWS:
        assert max(sizes.rows) > ROWS, "what waits together goes together"


def test_a_size_that_is_found_mixes_no_row(teacher: ScriptedTeacher, sizes: Sizes) -> None:
    source = Batches(150)
    with reader_of(source, teacher, teacher_batch_size="auto") as reader:
        check_epoch(source, list(reader))
    assert len(set(sizes.rows)) > 1, "several sizes were tried"


def test_a_request_is_a_batch_by_default(teacher: ScriptedTeacher, sizes: Sizes) -> None:
    with reader_of(Batches(20), teacher) as reader:
        list(reader)
    assert set(sizes.rows) == {ROWS}


def ragged() -> list[Any]:
    """Batches of sentences: some of one length, some of another, the last one smaller."""
    widths = [5, 5, 7, 7, 7, 5, 3, 3]
    batches = [np.full((4, width), i, np.float32) for i, width in enumerate(widths)]
    return [(batch,) for batch in [*batches, np.ones((1, 5), np.float32)]]


@pytest.mark.parametrize("rows", [2, 9])
def test_only_rows_of_one_shape_travel_together(teacher: ScriptedTeacher, rows: int) -> None:
    source = ragged()
    with reader_of(source, teacher, teacher_batch_size=rows) as reader:
        batches = list(reader)
    assert len(batches) == len(source)
    for (x,), (back, soft) in zip(source, batches, strict=True):
        np.testing.assert_array_equal(back, x)
        np.testing.assert_array_equal(soft, logits_of(x))


def test_a_batch_that_cannot_be_cut_goes_as_it_is(teacher: ScriptedTeacher, sizes: Sizes) -> None:
    """Its fields have no common rows, and nobody says which of them are fed."""
    source = [(np.full((6, 2), i, np.float32), np.zeros(3)) for i in range(5)]
    with reader_of(source, teacher, teacher_batch_size=4) as reader:
        assert [soft.shape[0] for *_, soft in reader] == [6] * 5
    assert set(sizes.rows) == {6}
    sizes.rows.clear()
    with reader_of(source, teacher, teacher_batch_size=4, feeds=[0]) as reader:
        assert [soft.shape[0] for *_, soft in reader] == [6] * 5
    assert max(sizes.rows) <= 4


def test_teachers_that_fail_now_and_then_lose_and_mix_no_row(
    teacher: ScriptedTeacher, sizes: Sizes
) -> None:
    second = ScriptedTeacher()
    turns = iter(range(10_000))

    def shaky(request: InferRequest) -> dict[str, Array]:
        if next(turns) % 3 == 1:
            raise RetryableError("not now")
        return label(request)

    second.behaviour = shaky
    source = Batches(60)
    try:
        with reader_of(source, teacher, second, teacher_batch_size=3) as reader:
            check_epoch(source, list(reader))
    finally:
        second.stop()


def test_one_bad_batch_among_those_that_travel_together_is_found() -> None:
    def picky(request: InferRequest) -> dict[str, Array]:
        if (request.inputs["x"] == 42).any():
            raise RequestRefused("42 is not for me")
        return label(request)

    teacher = ScriptedTeacher(picky)
    source = [(np.full((2, 3), value, np.float32),) for value in (1, 2, 42, 3, 4)]
    try:
        with reader_of(source, teacher, teacher_batch_size=10) as reader:
            iterator = iter(reader)
            assert [next(iterator)[0][0, 0] for _ in range(2)] == [1, 2]
            with pytest.raises(PoisonBatch, match="42 is not for me"):
                next(iterator)
    finally:
        teacher.stop()


@pytest.mark.parametrize("rows", [0, -1, "most"])
def test_a_size_that_is_none_is_refused(rows: Any) -> None:
    with pytest.raises(UsageError, match="teacher_batch_size"):
        DistilReader([], service="s", teachers=["a:1"], teacher_batch_size=rows)


def test_a_model_that_takes_few_rows_is_never_asked_for_more() -> None:
    """What its server says of it; one that says nothing is tried with as many as pay."""
    speeds = Speeds(ReaderConfig("s", teachers=("a:1",), teacher_batch_size="auto"))
    speeds.batch(32)
    assert speeds.joined("small", 0.0, most_rows=6).most_rows == 6
    assert speeds.joined("large", 0.0).most_rows == 32
    assert speeds.joined("large", 1.0, most_rows=4).most_rows == 4, "it serves another model now"
    fixed = Speeds(ReaderConfig("s", teachers=("a:1",), teacher_batch_size=12))
    assert fixed.joined("small", 0.0, most_rows=6).most_rows == 12, "the user's word counts"

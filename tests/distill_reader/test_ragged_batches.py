"""Batches of text: each as long as its longest sentence, or lists of sentences beside them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edl.errors import UsageError
from edl.tests.distill_reader.test_reader import reader_of
from edl.tests.scripted_teacher import ScriptedTeacher, label, logits_of

LENGTHS = ([5, 2, 9], [1], [7, 7], [3, 0, 4, 1], [12])


class Sentences:
    """Batches of sentences: `x` is padded to the longest of its batch, `words` is not at all."""

    def __len__(self) -> int:
        return len(LENGTHS)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(len(LENGTHS)):
            yield self.at(number)

    def at(self, number: int) -> dict[str, Any]:
        lengths = LENGTHS[number]
        words = [np.arange(1, length + 1) * (number + 1) for length in lengths]
        padded = np.zeros((len(words), max(lengths)), np.int64)
        for row, sentence in zip(padded, words, strict=True):
            row[: len(sentence)] = sentence
        return {"words": words, "x": padded, "lengths": np.array(lengths, np.int32), "id": number}


@pytest.fixture
def shapes() -> list[tuple[int, ...]]:
    """What the teacher was sent."""
    return []


@pytest.fixture
def teacher(shapes: list[tuple[int, ...]]) -> Iterator[ScriptedTeacher]:
    lock = threading.Lock()

    def work(request: Any) -> Any:
        assert list(request.inputs) == ["x"]
        with lock:
            shapes.append(request.inputs["x"].shape)
        return label(request)

    teacher = ScriptedTeacher(work)
    yield teacher
    teacher.stop()


def check(batches: list[dict[str, Any]]) -> None:
    """All as it was, and labelled."""
    assert [batch["id"] for batch in batches] == list(range(len(LENGTHS)))
    for number, batch in enumerate(batches):
        expected = Sentences().at(number)
        assert list(batch) == [*expected, "logits"]
        for words, same in zip(batch["words"], expected["words"], strict=True):
            assert words.dtype == same.dtype
            np.testing.assert_array_equal(words, same)
        for field in ("x", "lengths"):
            assert batch[field].dtype == expected[field].dtype
            np.testing.assert_array_equal(batch[field], expected[field])
        np.testing.assert_array_equal(batch["logits"], logits_of(expected["x"]))


@pytest.mark.parametrize("options", [{}, {"feeds": ["x"]}, {"feeds": {"x": "x"}}])
def test_only_the_padded_field_travels_and_all_come_back(
    teacher: ScriptedTeacher, shapes: list[tuple[int, ...]], options: dict[str, Any]
) -> None:
    with reader_of(Sentences(), teacher, **options) as reader:
        check(list(reader))
        assert reader.stats.samples_delivered == sum(map(len, LENGTHS))
    assert sorted(shapes) == sorted((len(lengths), max(lengths)) for lengths in LENGTHS)


@pytest.mark.parametrize("rows", [1, 2, 64])
def test_rows_of_different_lengths_are_not_joined(
    teacher: ScriptedTeacher, shapes: list[tuple[int, ...]], rows: int
) -> None:
    with reader_of(Sentences(), teacher, teacher_batch_size=rows) as reader:
        check(list(reader))
    assert all(shape[0] <= rows for shape in shapes)
    assert {shape[1] for shape in shapes} == {max(lengths) for lengths in LENGTHS}


def test_without_names_the_first_arrays_are_fed_and_never_a_list(teacher: ScriptedTeacher) -> None:
    source = [([np.arange(3), np.arange(5)], np.ones((2, 4), np.int64), np.arange(2))]
    with reader_of(source, teacher) as reader:
        ((words, x, ids, soft),) = list(reader)
    assert [len(sentence) for sentence in words] == [3, 5]
    np.testing.assert_array_equal(soft, logits_of(x))
    assert ids.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("batch", "options", "words"),
    [
        ({"x": [np.arange(3), np.arange(5)]}, {}, r"\['x'\] get no field .* which has \[\]"),
        (Sentences().at(0), {"feeds": {"x": "words"}}, "feeds names field 'words'"),
    ],
)
def test_a_list_that_is_to_be_fed_is_refused_with_what_to_do(
    teacher: ScriptedTeacher, batch: Any, options: dict[str, Any], words: str
) -> None:
    with (
        reader_of([batch], teacher, **options) as reader,
        pytest.raises(UsageError, match=rf"{words}.*pad them to one array"),
    ):
        list(reader)

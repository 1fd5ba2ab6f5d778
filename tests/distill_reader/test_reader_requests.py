"""What travels between a reader and its teachers: sizes, shapes, and what cannot travel."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from edl.distill_reader.options import Limits, Timeouts
from edl.proto.arena import Array
from edl.proto.forms import softmax
from edl.proto.tensors import InferRequest
from edl.runtime.errors import NoTeacherAvailable, PoisonBatch, RateLimited, UsageError
from edl.tests.distill_reader.readers import (
    ROWS,
    Batches,
    check_epoch,
    kept_port,
    numbers_of,
    reader_of,
)
from edl.tests.scripted_teacher import CLASSES, ScriptedTeacher, label, logits_of
from edl.tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.system

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def shapes(teacher: ScriptedTeacher) -> list[tuple[int, ...]]:
    """What the teacher was sent."""
    seen: list[tuple[int, ...]] = []

    def note(request: InferRequest) -> dict[str, Array]:
        assert list(request.inputs) == ["x"]
        seen.append(request.inputs["x"].shape)
        return label(request)

    teacher.behaviour = note
    return seen


# --- requests of another size than the student's batches


def test_automatic_size_keeps_rows(teacher: ScriptedTeacher, shapes: list[tuple[int, ...]]) -> None:
    source = Batches(150)
    with reader_of(source, teacher, limits=Limits(request_rows="auto")) as reader:
        check_epoch(source, list(reader))
    assert len({shape[0] for shape in shapes}) > 1, "several sizes were tried"


def test_uncut_batches_go_whole(teacher: ScriptedTeacher, shapes: list[tuple[int, ...]]) -> None:
    """Its fields have no common rows, and nobody says which of them are fed."""
    source = [(np.full((6, 2), i, np.float32), np.zeros(3)) for i in range(5)]
    for feeds, sizes in ((None, {6}), ([0], {1, 2, 3, 4})):
        shapes.clear()
        with reader_of(source, teacher, limits=Limits(request_rows=4), feeds=feeds) as reader:
            assert [soft.shape[0] for *_, soft in reader] == [6] * 5
        assert {shape[0] for shape in shapes} <= sizes


def test_the_buffer_holds_no_more_than_its_limit(teacher: ScriptedTeacher) -> None:
    """Whatever the windows are, and though the teacher does not answer for a while."""
    answers, given = threading.Event(), 0

    def wait(request: InferRequest) -> dict[str, Array]:
        assert answers.wait(DEADLINE_S)
        return label(request)

    class Counted(Batches):
        def at(self, number: int) -> Any:
            nonlocal given
            given += 1
            return super().at(number)

    teacher.behaviour = wait
    limit = int(4.5 * ROWS * 4096 * 4)
    options = {"limits": Limits(buffer_bytes=limit, window=8), "upper_bytes": limit}
    with reader_of(Counted(60, (4096,)), teacher, **options) as reader:
        iterator = iter(reader)
        wait_until(lambda: given == 4)
        answers.set()
        for taken, _ in enumerate(iterator, 1):
            assert given - taken <= 4


def test_batches_that_the_loop_holds_do_not_count_towards_the_limit(
    teacher: ScriptedTeacher,
) -> None:
    limit = int(2.5 * ROWS * 4096 * 4)
    options = {"limits": Limits(buffer_bytes=limit), "upper_bytes": limit}
    with reader_of(Batches(40, (4096,)), teacher, **options) as reader:
        held = list(reader)
        assert numbers_of(held) == [*range(40)]


def test_a_full_teacher_loses_no_batch(teacher: ScriptedTeacher) -> None:
    """It says when it will have room."""
    turns = iter(range(10_000))

    def full_at_first(request: InferRequest) -> dict[str, Array]:
        if next(turns) < 10:
            raise RateLimited("full", 0.05)
        return label(request)

    teacher.behaviour = full_at_first
    source = Batches(20)
    with reader_of(source, teacher) as reader:
        check_epoch(source, list(reader))
        assert (reader.stats.ejections, teacher.requests) == (0, 30)


# --- sentences of different lengths

LENGTHS = ([5, 2, 9], [1], [7, 7], [7], [3, 0, 4, 1], [12])


def sentences_at(number: int) -> dict[str, Any]:
    """`x` is padded to the longest of its batch, `words` is not at all."""
    lengths = LENGTHS[number]
    words = [np.arange(1, length + 1) * (number + 1) for length in lengths]
    padded = np.zeros((len(words), max(lengths)), np.int64)
    for row, sentence in zip(padded, words, strict=True):
        row[: len(sentence)] = sentence
    return {"words": words, "x": padded, "lengths": np.array(lengths, np.int32), "id": number}


SENTENCES = [sentences_at(number) for number in range(len(LENGTHS))]


@pytest.mark.parametrize(
    "options",
    [{}, {"feeds": {"x": "x"}}, *({"limits": Limits(request_rows=rows)} for rows in (1, 64))],
)
def test_only_the_padded_field_travels_and_all_come_back(
    teacher: ScriptedTeacher, shapes: list[tuple[int, ...]], options: dict[str, Any]
) -> None:
    """Rows of different lengths are not joined."""
    teacher.datatype = "INT64"
    with reader_of(SENTENCES, teacher, **options) as reader:
        batches = list(reader)
        assert reader.stats.samples_delivered == sum(map(len, LENGTHS))
    assert [batch["id"] for batch in batches] == list(range(len(LENGTHS)))
    for expected, batch in zip(SENTENCES, batches, strict=True):
        assert list(batch) == [*expected, "logits"]
        pairs = [*zip(batch["words"], expected["words"], strict=True)]
        pairs += [(batch[field], expected[field]) for field in ("x", "lengths")]
        for array, same in pairs:
            assert array.dtype == same.dtype
            np.testing.assert_array_equal(array, same)
        np.testing.assert_array_equal(batch["logits"], logits_of(expected["x"]))
    assert {width for _, width in shapes} == {max(lengths) for lengths in LENGTHS}
    if most_rows := options.get("limits", Limits()).request_rows:
        assert max(rows for rows, _ in shapes) <= most_rows
    else:
        assert sorted(shapes) == sorted((len(lengths), max(lengths)) for lengths in LENGTHS)


LISTS, WORDS = {"x": [np.arange(3), np.arange(5)]}, {"feeds": {"x": "words"}}
PAD = "pad them to one array"
DOUBLES, COMPLEX = (X.astype(np.float64),), (X.astype(np.complex64),)


@pytest.mark.parametrize(
    ("batches", "options", "error", "words"),
    [
        ([LISTS], {}, UsageError, rf"\['x'\] get no field .* which has \[\].*{PAD}"),
        (SENTENCES[:1], WORDS, UsageError, f"feeds names field 'words'.*{PAD}"),
        ([DOUBLES] * 2, {}, UsageError, "'x' is declared as float32, the batch has float64"),
        ([(X,), COMPLEX], {}, PoisonBatch, "batch 1: .*complex64 cannot be sent"),
    ],
)
def test_what_cannot_be_fed_is_refused(
    teacher: ScriptedTeacher,
    batches: list[Any],
    options: dict[str, Any],
    error: type[Exception],
    words: str,
) -> None:
    """Lists, a wrong dtype from the first batch on, and a dtype that no teacher can get."""
    with reader_of(batches, teacher, **options) as reader, pytest.raises(error, match=words):
        list(reader)


# --- unusual batches


def test_any_layout_comes_back_as_it_was(teacher: ScriptedTeacher) -> None:
    layouts = [X.astype(">f4"), np.asfortranarray(X), X[:, ::-2], np.broadcast_to(X[0], (4, 3))]
    with reader_of(layouts, teacher) as reader:
        batches = list(reader)
    assert len(batches) == len(layouts)
    for x, (back, soft) in zip(layouts, batches, strict=True):
        assert back.dtype == x.dtype
        np.testing.assert_array_equal(back, x)
        np.testing.assert_array_equal(soft, logits_of(x))


def test_rows_are_counted_in_what_the_teacher_gets(teacher: ScriptedTeacher) -> None:
    """A teacher whose answers fit its input is not ejected for a field that it never saw."""
    source = [{"mean": mean, "x": X} for mean in (np.array(3), np.ones(7, np.float32))] * 3
    with reader_of(source, teacher) as reader:
        batches = list(reader)
    assert len(batches) == 6
    for batch in batches:
        np.testing.assert_array_equal(batch["logits"], logits_of(X))


def test_batches_of_different_structures_follow_each_other(teacher: ScriptedTeacher) -> None:
    unnameable = {np.int64(3): X, ("a", 1): X, "x": X}
    with reader_of([X, (X, "a"), [X], {"x": X}, (X[:1],), unnameable], teacher) as reader:
        *batches, last = list(reader)
    assert [type(batch) for batch in batches] == [tuple, tuple, list, dict, tuple]
    assert set(last) == {3, ("a", 1), "x", "logits"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fetches": ["logit"]}, r"fetches names output 'logit', the model has \['logits'\]"),
        ({"label_form": "topk:10"}, r"output 'logits' has 10 classes.*K must be smaller"),
        ({"label_form": {"logit": "float16"}}, r"given for output 'logit', the model has"),
        ({"feeds": {"image": 0}}, r"feeds names input 'image', the model has \['x', 'mask'\]"),
        ({"feeds": [0]}, r"feeds has no field for the model's inputs \['mask'\]"),
        ({"feeds": {"x": 0}}, r"feeds has no field for the model's inputs \['mask'\]"),
        ({"soft_label_is": "logits"}, "'logits' is probabilities, and soft_label_is says logits"),
    ],
)
def test_settings_that_the_model_contradicts_are_a_usage_error(
    teacher: ScriptedTeacher, second: ScriptedTeacher, options: dict[str, Any], words: str
) -> None:
    """By what the model says of itself: no batch is sent."""
    for one in (teacher, second):
        one.inputs, one.output_kind = ("x", "mask"), "probabilities"
    with (
        reader_of(Batches(3), teacher, second, **options) as reader,
        pytest.raises(UsageError, match=words),
    ):
        list(reader)
    assert teacher.requests == second.requests == 0


def test_a_teacher_that_fits_and_comes_later_is_waited_for(teacher: ScriptedTeacher) -> None:
    """The other one does not fit, and is probed again until then."""
    teacher.outputs = {"embedding": CLASSES}
    probes: list[bool] = []

    def is_ready() -> bool:
        probes.append(True)
        return True

    teacher.is_ready = is_ready
    source = Batches(3)
    with (
        kept_port() as port,
        reader_of(source, teacher, f"127.0.0.1:{port}", fetches=["logits"]) as reader,
        ThreadPoolExecutor() as pool,
    ):
        epoch = pool.submit(list, reader)
        wait_until(lambda: len(probes) > 1 or epoch.done())
        fitting = ScriptedTeacher(port=port)
        try:
            check_epoch(source, epoch.result(DEADLINE_S))
        finally:
            fitting.stop()
    assert teacher.requests == 0


def test_requests_may_take_as_long_as_they_want(teacher: ScriptedTeacher) -> None:
    source = Batches(3)
    timeouts = Timeouts(request_s=1e300, wait_s=DEADLINE_S)
    with reader_of(source, teacher, timeouts=timeouts) as reader:
        check_epoch(source, list(reader))


def test_a_teacher_that_answers_no_message_at_all_is_lost(
    teacher: ScriptedTeacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "edl.tests.scripted_teacher.tensors.encode_response", lambda *_: b"\xff\xff"
    )
    with reader_of(Batches(1), teacher, timeouts=Timeouts(wait_s=0.5)) as reader:
        wait_until(lambda: reader.stats.teachers)
        with pytest.raises(NoTeacherAvailable, match="was lost: truncated message"):
            list(reader)


def test_a_teacher_that_publishes_another_kind_of_output_does_not_label(
    teacher: ScriptedTeacher, second: ScriptedTeacher
) -> None:
    """An ensemble reads all labels of a service alike; the other teacher comes a little later."""
    found = threading.Event()

    def is_ready() -> bool:
        if teacher.requests:
            found.set()
        return teacher.requests > 0

    class Behind(Batches):
        def __iter__(self) -> Iterator[Any]:
            for number, batch in enumerate(super().__iter__()):
                assert number < 3 or found.wait(DEADLINE_S)
                yield batch

    teacher.output_kind, second.output_kind = "logits", "probabilities"
    second.is_ready = is_ready
    teachers = {"a": [teacher.address, second.address], "b": [teacher.address]}
    with reader_of(Behind(60), service={"a": 1.0, "b": 1.0}, teachers=teachers) as reader:
        for x, _, soft in reader:
            np.testing.assert_allclose(soft, softmax(logits_of(x), 1.0), atol=1e-6)
        assert dict(reader.stats.label_kinds) == {"logits": "logits"}
        wait_until(lambda: second.address in reader.stats.ejected)
    assert second.requests == 0

"""What travels between a reader and its teachers: sizes, shapes, forms, and what cannot travel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import engine_client
from edl.errors import (
    NoTeacherAvailable,
    PoisonBatch,
    RateLimited,
    RequestRefused,
    RetryableError,
    UsageError,
)
from edl.proto.arena import Array
from edl.proto.form_arrays import decode, encode
from edl.proto.forms import Form
from edl.proto.tensors import InferRequest
from edl.tests.distill_reader.conftest import StartTeacher
from edl.tests.distill_reader.readers import ROWS, Batches, check_epoch, reader_of
from edl.tests.foreign_server import MODEL, ForeignGrpc
from edl.tests.scripted_teacher import CLASSES, ScriptedTeacher, label, logits_of
from edl.tests.teacher.bench import Bench
from edl.tests.teacher.fakes import double_and_sum

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


def test_a_size_that_is_found_mixes_no_row(
    teacher: ScriptedTeacher, shapes: list[tuple[int, ...]]
) -> None:
    source = Batches(150)
    with reader_of(source, teacher, teacher_batch_size="auto") as reader:
        check_epoch(source, list(reader))
    assert len({shape[0] for shape in shapes}) > 1, "several sizes were tried"


def test_a_request_is_a_batch_by_default(
    teacher: ScriptedTeacher, shapes: list[tuple[int, ...]]
) -> None:
    with reader_of(Batches(20), teacher) as reader:
        list(reader)
    assert set(shapes) == {(ROWS, 3)}


def test_a_batch_that_cannot_be_cut_goes_as_it_is(
    teacher: ScriptedTeacher, shapes: list[tuple[int, ...]]
) -> None:
    """Its fields have no common rows, and nobody says which of them are fed."""
    source = [(np.full((6, 2), i, np.float32), np.zeros(3)) for i in range(5)]
    for feeds, sizes in ((None, {6}), ([0], {1, 2, 3, 4})):
        shapes.clear()
        with reader_of(source, teacher, teacher_batch_size=4, feeds=feeds) as reader:
            assert [soft.shape[0] for *_, soft in reader] == [6] * 5
        assert {shape[0] for shape in shapes} <= sizes


def test_teachers_that_fail_now_and_then_lose_and_mix_no_row(
    teacher: ScriptedTeacher, second: ScriptedTeacher
) -> None:
    turns = iter(range(10_000))

    def fail_each_third(request: InferRequest) -> dict[str, Array]:
        if next(turns) % 3 == 1:
            raise RetryableError("not now")
        return label(request)

    second.behaviour = fail_each_third
    source = Batches(60)
    with reader_of(source, teacher, second, teacher_batch_size=3) as reader:
        check_epoch(source, list(reader))


def test_one_bad_batch_among_those_that_travel_together_is_found(teacher: ScriptedTeacher) -> None:
    def refuse_42(request: InferRequest) -> dict[str, Array]:
        if (request.inputs["x"] == 42).any():
            raise RequestRefused("42 is not for me")
        return label(request)

    teacher.behaviour = refuse_42
    source = [(np.full((2, 3), value, np.float32),) for value in (1, 2, 42, 3, 4)]
    with reader_of(source, teacher, teacher_batch_size=10) as reader:
        iterator = iter(reader)
        assert [next(iterator)[0][0, 0] for _ in range(2)] == [1, 2]
        with pytest.raises(PoisonBatch, match="42 is not for me"):
            next(iterator)


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


def check_sentences(batches: list[dict[str, Any]]) -> None:
    assert [batch["id"] for batch in batches] == list(range(len(LENGTHS)))
    for expected, batch in zip(SENTENCES, batches, strict=True):
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
    with reader_of(SENTENCES, teacher, **options) as reader:
        check_sentences(list(reader))
        assert reader.stats.samples_delivered == sum(map(len, LENGTHS))
    assert sorted(shapes) == sorted((len(lengths), max(lengths)) for lengths in LENGTHS)


@pytest.mark.parametrize("rows", [1, 2, 64])
def test_rows_of_different_lengths_are_not_joined(
    teacher: ScriptedTeacher, shapes: list[tuple[int, ...]], rows: int
) -> None:
    with reader_of(SENTENCES, teacher, teacher_batch_size=rows) as reader:
        check_sentences(list(reader))
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
        (SENTENCES[0], {"feeds": {"x": "words"}}, "feeds names field 'words'"),
    ],
)
def test_a_list_cannot_be_fed(
    teacher: ScriptedTeacher, batch: Any, options: dict[str, Any], words: str
) -> None:
    with (
        reader_of([batch], teacher, **options) as reader,
        pytest.raises(UsageError, match=rf"{words}.*pad them to one array"),
    ):
        list(reader)


# --- unusual batches


def test_any_layout_comes_back_as_it_was(teacher: ScriptedTeacher) -> None:
    layouts = [
        X.astype(">f4"),
        np.asfortranarray(X),
        X[:, ::-2],
        np.broadcast_to(X[0], (4, 3)),
        X[:0],
    ]
    teacher.behaviour = lambda request: {
        "logits": logits_of(x) if len(x := request.inputs["x"]) else np.zeros((0, CLASSES), "f4")
    }
    with reader_of(layouts, teacher) as reader:
        batches = list(reader)
    assert len(batches) == len(layouts)
    for x, (back, soft) in zip(layouts, batches, strict=True):
        assert back.dtype == x.dtype
        np.testing.assert_array_equal(back, x)
        assert soft.shape == (len(x), CLASSES)
        if len(x):
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


def test_a_dtype_that_no_teacher_can_get_is_poison(teacher: ScriptedTeacher) -> None:
    with (
        reader_of([(X,), (X.astype(np.complex64),)], teacher) as reader,
        pytest.raises(PoisonBatch, match=r"batch 1 .*complex64 cannot be sent"),
    ):
        list(reader)


def test_a_batch_that_is_not_finite_is_to_blame_and_not_its_teachers(
    teacher: ScriptedTeacher,
) -> None:
    nan = X.copy()
    nan[0, 0] = np.nan
    source: list[Any] = [(nan,), (X,)]
    with reader_of(source, teacher) as reader:
        with pytest.raises(PoisonBatch, match="input 'x' holds values that are not finite"):
            list(reader)
        source[:] = [(X,)]
        assert len(list(reader)) == 1, "the teacher is still asked"


# --- unusual answers


def test_impossible_device_times_are_not_believed(
    teacher: ScriptedTeacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_client, "FIGURES_S", 30.0)
    source = Batches(20)
    with reader_of(source, teacher) as reader:
        for told in ("abc", float("inf"), float("nan"), -1.0, 1e300, True):
            teacher.parameters = {"device_seconds": told}
            check_epoch(source, list(reader))
            assert 0 < reader.stats.t_t_s < 60
        assert reader.stats.engine_restarts == 0


def test_a_teacher_that_answers_no_message_at_all_is_lost(
    teacher: ScriptedTeacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "edl.tests.scripted_teacher.tensors.encode_response", lambda **_: b"\xff\xff"
    )
    with (
        reader_of(Batches(1), teacher, wait_timeout_s=0.5) as reader,
        pytest.raises(NoTeacherAvailable, match="was lost: truncated message"),
    ):
        list(reader)


FEATURES = 6  # as the foreign server declares


@pytest.fixture
def foreign() -> Iterator[Callable[[Any], ForeignGrpc]]:
    """Starts a foreign server of a model; it answers UNKNOWN whatever the model raises."""
    made: list[ForeignGrpc] = []

    def start(model: Callable[[Array], Array]) -> ForeignGrpc:
        made.append(ForeignGrpc(model))
        return made[-1]

    yield start
    for server in made:
        server.stop()


def test_a_failure_on_a_batch_that_does_not_fit_the_model_is_poison(
    foreign: Callable[[Any], ForeignGrpc],
) -> None:
    def model(x: Array) -> Array:
        assert x.shape[1] == FEATURES
        return logits_of(x)

    batches = [np.ones((4, FEATURES), np.float32), np.ones((4, FEATURES + 1), np.float32)]
    with reader_of(batches, foreign(model).address, service=MODEL) as reader:
        epoch = iter(reader)
        next(epoch)
        with pytest.raises(PoisonBatch, match=r"'x' is declared as \[-1, 6\].*\[4, 7\]"):
            next(epoch)


def test_after_a_failure_on_a_batch_that_fits_the_model_it_is_sent_again(
    foreign: Callable[[Any], ForeignGrpc],
) -> None:
    failures = iter([True, True, False])

    def model(x: Array) -> Array:
        if next(failures):
            raise MemoryError("out of device memory")
        return logits_of(x)

    server, x = foreign(model), np.ones((4, FEATURES), np.float32)
    with reader_of([x], server.address, service=MODEL) as reader:
        ((_, soft),) = list(reader)
    np.testing.assert_array_equal(soft, logits_of(x))
    assert server.requests == 3


# --- forms of labels


def rows_at(number: int) -> Array:
    """3 rows for a model of input [-1, 4]."""
    return np.random.default_rng(number).normal(0, 2, (3, 4)).astype(np.float32)


FORMED = [(rows_at(number),) for number in range(12)]


@pytest.fixture(scope="module")
def ours() -> Iterator[str]:
    with closing(Bench(slots=4)) as bench:
        yield bench.address


@pytest.mark.parametrize(("form", "temperature"), [("topk:2", None), ("float16", 3.0)])
def test_a_mixed_pool_gives_the_same_dense_labels(
    ours: str, start_teacher: StartTeacher, form: str, temperature: float | None
) -> None:
    """One of the servers ignores the parameters that it does not know."""
    asked = Form.parse(form, temperature)
    assert asked is not None
    addresses = (ours, start_teacher(lambda request: double_and_sum(request.inputs)).address)
    options = {"service": "resnet", "label_form": form, "temperature": temperature}
    with reader_of(FORMED, *addresses, fetches=["double"], **options) as reader:
        served: set[str] = set()
        while served != set(addresses):  # one may label an epoch before the other is reached
            batches = list(reader)
            served |= dict(reader.stats.served).keys()
            assert len(batches) == len(FORMED)
            for (x,), (back, soft) in zip(FORMED, batches, strict=True):
                np.testing.assert_array_equal(back, x)
                dense = decode("y", encode("y", 2 * x, asked), asked, asked.parameters(4))
                np.testing.assert_array_equal(soft, dense)


def test_parts_of_a_form_come_in_their_order(ours: str) -> None:
    form = {"label_form": {"double": "topk:2"}, "expand_labels": False}
    with reader_of(FORMED, ours, service="resnet", fetches=["double"], **form) as reader:
        batches = list(reader)
    assert len(batches) == len(FORMED)
    for x, values, indices, tail in batches:
        assert indices.dtype == np.int64
        assert (indices[:, 0] == x.argmax(-1)).all()
        np.testing.assert_allclose(values[:, 0], 2 * x.max(-1), rtol=1e-3)
        assert tail.shape == (3,)


def test_forms_of_outputs_that_are_not_fetched_by_name(ours: str) -> None:
    with reader_of(FORMED, ours, service="resnet", label_form={"double": "topk:2"}) as reader:
        batches = list(reader)
    assert len(batches) == len(FORMED)
    for x, total, double in batches:
        np.testing.assert_allclose(total, x.sum(-1), rtol=1e-6)
        assert double.shape == (3, 4)


def test_a_form_that_the_model_cannot_give_is_poison(ours: str) -> None:
    words = "output 'double' has 4 classes, so topk:4 leaves none out: K must be below"
    with (
        reader_of(
            FORMED, ours, service="resnet", fetches=["double"], label_form="topk:4"
        ) as reader,
        pytest.raises(PoisonBatch, match=words),
    ):
        list(reader)

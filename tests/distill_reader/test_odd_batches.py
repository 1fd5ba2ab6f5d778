"""Batches and answers that are unusual, or wrong: each labelled or refused, none waited for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import engine_client
from edl.errors import NoTeacherAvailable, PoisonBatch, RetryableError, UsageError
from edl.tests.distill_reader.test_reader import Batches, check_epoch, reader_of
from edl.tests.scripted_teacher import CLASSES, ScriptedTeacher, label, logits_of

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def teacher() -> Iterator[ScriptedTeacher]:
    teacher = ScriptedTeacher()
    yield teacher
    teacher.stop()


@pytest.mark.parametrize(
    "x",
    [X.astype(">f4"), np.asfortranarray(X), X[:, ::-2], np.broadcast_to(X[0], (4, 3))],
    ids=["big-endian", "column-major", "strided backwards", "broadcast"],
)
def test_any_layout_comes_back_as_it_was(teacher: ScriptedTeacher, x: Any) -> None:
    with reader_of([x], teacher) as reader:
        ((back, soft),) = list(reader)
    assert back.dtype == x.dtype
    np.testing.assert_array_equal(back, x)
    np.testing.assert_array_equal(soft, logits_of(x))


def test_a_batch_without_rows_is_labelled(teacher: ScriptedTeacher) -> None:
    teacher.behaviour = lambda request: {
        "logits": np.zeros((len(request.inputs["x"]), CLASSES), np.float32)
    }
    with reader_of([(X[:0],), (X,), (X[:0],)], teacher) as reader:
        assert [soft.shape for _, soft in reader] == [(0, CLASSES), (2, CLASSES), (0, CLASSES)]


@pytest.mark.parametrize("first", [np.array(3), np.ones(7, np.float32)])
def test_rows_are_those_of_what_the_teacher_gets(teacher: ScriptedTeacher, first: Any) -> None:
    """A teacher that answers right is not thrown out for a field that it never saw."""
    with reader_of([{"mean": first, "x": X}] * 3, teacher) as reader:
        for batch in reader:
            np.testing.assert_array_equal(batch["logits"], logits_of(X))


def test_keys_that_cannot_be_named_stay_with_the_batch(teacher: ScriptedTeacher) -> None:
    with reader_of([{np.int64(3): X, ("a", 1): X, "x": X}], teacher) as reader:
        (batch,) = list(reader)
    assert set(batch) == {3, ("a", 1), "x", "logits"}


def test_batches_of_different_structures_follow_each_other(teacher: ScriptedTeacher) -> None:
    with reader_of([X, (X, "a"), [X], {"x": X}, (X[:1],)], teacher) as reader:
        kinds = [type(batch) for batch in reader]
    assert kinds == [tuple, tuple, list, dict, tuple]


def test_what_no_teacher_can_get_is_poison(teacher: ScriptedTeacher) -> None:
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


def test_a_wrong_feed_is_said_in_every_epoch(teacher: ScriptedTeacher) -> None:
    with reader_of(Batches(5), teacher, feeds=[7]) as reader:
        for _ in range(3):
            with pytest.raises(UsageError, match="field 7"):
                list(reader)


@pytest.mark.parametrize("told", ["abc", float("inf"), float("nan"), -1.0, 1e300, True])
def test_impossible_device_times_are_not_believed(
    teacher: ScriptedTeacher, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_client, "FIGURES_S", 30.0)
    teacher.parameters = {"device_seconds": told}
    source = Batches(20)
    with reader_of(source, teacher) as reader:
        check_epoch(source, list(reader))
        assert reader.stats.engine_restarts == 0
        assert 0 < reader.stats.t_t_s < 10


@pytest.mark.serial
def test_a_teacher_that_answers_no_message_at_all_is_not_asked_again(
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
    assert teacher.requests <= 2


def test_a_teacher_that_always_fails_is_not_asked_as_fast_as_one_can(
    teacher: ScriptedTeacher,
) -> None:
    failing = ScriptedTeacher(fail)
    slow = Batches(40)
    teacher.behaviour = at_ease
    try:
        with reader_of(slow, failing, teacher) as reader:
            check_epoch(slow, list(reader))
    finally:
        failing.stop()
    assert failing.requests <= 25


def fail(request: Any) -> Any:
    raise RetryableError("it never gets better")


def at_ease(request: Any) -> Any:
    time.sleep(0.03)
    return label(request)

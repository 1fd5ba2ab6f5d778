"""Teachers that fail or answer nonsense are put out of the pool, and let in again when well."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from edl.errors import RetryableError
from edl.proto.arena import Array
from edl.proto.tensors import InferRequest
from edl.tests.distill_reader.test_reader import Batches, check_epoch, reader_of, until
from edl.tests.scripted_teacher import ScriptedTeacher, label


@pytest.fixture
def good() -> Iterator[ScriptedTeacher]:
    teacher = ScriptedTeacher()
    yield teacher
    teacher.stop()


@pytest.fixture
def bad() -> Iterator[ScriptedTeacher]:
    teacher = ScriptedTeacher()
    yield teacher
    teacher.stop()


def fails(request: InferRequest) -> dict[str, Array]:
    raise RetryableError("not now")


def answers_nonsense(request: InferRequest) -> dict[str, Array]:
    return {name: np.full_like(labels, np.nan) for name, labels in label(request).items()}


@pytest.mark.parametrize("behaviour", [fails, answers_nonsense])
def test_who_is_ill_is_out_and_back_when_well(
    good: ScriptedTeacher, bad: ScriptedTeacher, behaviour: object
) -> None:
    bad.behaviour = behaviour  # type: ignore[assignment]
    source = Batches(10)
    with reader_of(source, good, bad) as reader:
        while not reader.stats.ejected:
            check_epoch(source, list(reader))
        assert reader.stats.ejected == (bad.address,)
        assert reader.stats.ejections >= 1
        bad.behaviour = label
        until(lambda: reader.stats.ejected == (), 20.0)
        while not dict(reader.stats.served).get(bad.address):
            check_epoch(source, list(reader))


def test_the_only_teacher_is_not_ejected_for_failing(good: ScriptedTeacher) -> None:
    turns = iter(range(1000))

    def mostly_fails(request: InferRequest) -> dict[str, Array]:
        if next(turns) % 5:
            raise RetryableError("not now")
        return label(request)

    good.behaviour = mostly_fails
    source = Batches(3)
    with reader_of(source, good) as reader:
        check_epoch(source, list(reader))
        assert reader.stats.ejections == 0

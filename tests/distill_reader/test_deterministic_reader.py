"""`DistilReader(deterministic=True)`: a real engine, and teachers whose labels differ in bits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import DistilReader, LabelStore
from edl.errors import NoTeacherAvailable
from edl.proto.arena import Array
from edl.proto.tensors import InferRequest
from edl.tests.distill_reader.store.test_reader_with_store import SAMPLES, Shuffled
from edl.tests.distill_reader.test_reader import ROWS, Batches, until
from edl.tests.scripted_teacher import ScriptedTeacher, logits_of

FACTORS = {"onnx-fp32-1": 1.0, "onnx-fp32-2": 1.001, "merged-onnx-fp32-1": 1.002}


def teacher_of(numerics_id: str) -> ScriptedTeacher:
    factor = np.float32(FACTORS[numerics_id])

    def label(request: InferRequest) -> dict[str, Array]:
        return {"logits": logits_of(request.inputs["x"]) * factor}

    teacher = ScriptedTeacher(label)
    teacher.parameters = {"content_id": "c", "numerics_id": numerics_id}
    return teacher


@pytest.fixture
def teachers() -> Iterator[dict[str, ScriptedTeacher]]:
    teachers = {numerics_id: teacher_of(numerics_id) for numerics_id in FACTORS}
    yield teachers
    for teacher in teachers.values():
        teacher.stop()


def reader_of(source: Any, *teachers: ScriptedTeacher, **options: Any) -> DistilReader:
    addresses = [teacher.address for teacher in teachers]
    return DistilReader(source, service="s", teachers=addresses, deterministic=True, **options)


def factors(batches: list[Any]) -> set[float]:
    """By what the labels of each batch differ from those of the first kind of teacher."""
    return {round(float(soft.sum() / logits_of(x).sum()), 3) for x, *_, soft in batches if x.any()}


def test_the_labels_of_a_stream_are_of_one_numerics(teachers: dict[str, ScriptedTeacher]) -> None:
    class UntilAllWereAsked:
        def __iter__(self) -> Iterator[Any]:
            for number in itertools.count():
                if number >= 60 and all(teacher.requests for teacher in teachers.values()):
                    return
                yield Batches(60).at(number % 60), np.full(ROWS, number)

    with reader_of(UntilAllWereAsked(), *teachers.values()) as reader:
        batches = list(reader)
        until(lambda: len(reader.stats.teachers) == 1)
    assert [int(ids[0]) for _, ids, _ in batches] == list(range(len(batches)))
    assert factors(batches) in ({1.0}, {1.001})


def test_without_a_teacher_of_its_numerics_it_has_none(
    teachers: dict[str, ScriptedTeacher],
) -> None:
    merging = teachers["merged-onnx-fp32-1"]
    with (
        reader_of(Batches(3), merging, wait_timeout_s=3.0) as reader,
        pytest.raises(NoTeacherAvailable, match="of other numerics"),
    ):
        list(reader)


def test_labels_of_other_numerics_are_not_in_the_store(
    teachers: dict[str, ScriptedTeacher], tmp_path: Path
) -> None:
    store = LabelStore(tmp_path / "labels.edl", 64 << 20)
    one, two = teachers["onnx-fp32-1"], teachers["onnx-fp32-2"]
    source = Shuffled(range(SAMPLES), 8)
    for teacher, requests, factor in ((one, 15, 1.0), (two, 15, 1.001), (one, 15, 1.0)):
        with reader_of(source, teacher, store=store) as reader:
            assert factors(list(reader)) == {factor}
        assert teacher.requests <= requests + 1, "the first is sent to learn of the model"


def test_a_batch_that_the_store_has_a_part_of_is_sent_whole(
    teachers: dict[str, ScriptedTeacher], tmp_path: Path
) -> None:
    store = LabelStore(tmp_path / "labels.edl", 64 << 20)
    teacher = teachers["onnx-fp32-1"]
    rows: list[int] = []
    answer = teacher.behaviour

    def counted(request: InferRequest) -> dict[str, Array]:
        rows.append(len(request.inputs["x"]))
        return answer(request)

    teacher.behaviour = counted
    for source in (Shuffled(range(SAMPLES // 2), 6), Shuffled(range(SAMPLES), 8)):
        with reader_of(source, teacher, store=store) as reader:
            assert factors(list(reader)) == {1.0}
    assert set(rows) == {6, 8}
    assert len(rows) < 10 + 15, "what it has all of is not sent"

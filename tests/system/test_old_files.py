"""Files that commit af8215e wrote, in `tests/files`, are read; samples are numbers from 0 to 39.

`test_students.py` goes on with the training that lies there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import Batched, DistilReader, LabelStore
from edl.student.checkpoint import Repository
from edl.tests.distill_reader.readers import NOBODY, Samples
from edl.tests.scripted_teacher import ScriptedTeacher, logits_of
from edl.tests.student.checkpoint.samples import check

FILES = Path(__file__).resolve().parents[1] / "files" / "af8215e"
COUNT = 40


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Copies, which a test may change."""
    return Path(shutil.copytree(FILES, tmp_path / "old"))


@pytest.fixture
def teacher() -> Iterator[ScriptedTeacher]:
    teacher = ScriptedTeacher()
    teacher.parameters = {"content_id": "model-1"}
    yield teacher
    teacher.stop()


def reader(*teachers: str, **options: Any) -> DistilReader:
    source = Batched(Samples(COUNT), 4, shuffle=True)
    return DistilReader(source, service="s", teachers=teachers, seed=5, **options)


def ids_of(batches: list[Any]) -> list[int]:
    return [int(i) for _, ids, _ in batches for i in ids]


def test_a_checkpoint(old: Path) -> None:
    repository = Repository(str(old / "checkpoint"))
    (checkpoint,) = repository.list()
    assert repository.newest_valid() == checkpoint
    check(repository.load(checkpoint), size=64)


def test_a_state_of_a_reader(old: Path, teacher: ScriptedTeacher) -> None:
    told = json.loads((old / "reader-state.json").read_text())
    with closing(reader(teacher.address)) as resumed:
        resumed.load_state_dict(told["state"])
        rest = ids_of(list(resumed))
    assert sorted(told["delivered"] + rest) == list(range(COUNT)), "what had not been given out"


def test_a_label_store(old: Path) -> None:
    store = LabelStore(old / "labels.edl", 1 << 20)
    with closing(reader(NOBODY, store=store)) as without_teachers:
        batches = list(without_teachers)
    assert sorted(ids_of(batches)) == list(range(COUNT))
    for x, _, soft in batches:
        np.testing.assert_array_equal(soft, logits_of(x))

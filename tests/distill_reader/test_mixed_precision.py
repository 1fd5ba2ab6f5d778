"""Teachers of one content that answer in unlike precision label one stream."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import CanaryPolicy, DistilReader
from edl.proto.arena import Array
from edl.proto.tensors import InferRequest
from edl.tests.distill_reader.test_reader import ROWS, Batches
from edl.tests.scripted_teacher import ScriptedTeacher, logits_of


class Half(ScriptedTeacher):
    """Its model computes in half precision."""

    def __init__(self) -> None:
        super().__init__(self._label)

    def _label(self, request: InferRequest) -> dict[str, Array]:
        return {"logits": logits_of(request.inputs["x"]).astype(np.float16)}


@pytest.fixture
def addresses() -> Iterator[list[str]]:
    with ExitStack() as stack:
        teachers = [ScriptedTeacher(), Half()]
        for teacher in teachers:
            stack.callback(teacher.stop)
        yield [teacher.address for teacher in teachers]


class UntilBothHaveServed:
    """A hundred batches, and more while one of two teachers has labelled none.

    Args:
        served: by each teacher, as the reader tells.
    """

    def __init__(self, served: Callable[[], list[int]]) -> None:
        self._served = served

    def __iter__(self) -> Iterator[Any]:
        batches = Batches(100)
        for number in itertools.count():
            served = self._served()
            if number >= 100 and len(served) == 2 and all(served):
                return
            yield batches.at(number % 100), np.full(ROWS, number)


@pytest.mark.parametrize("rows", [None, 3])
def test_nobody_is_blamed_for_it_and_the_richer_form_wins(
    addresses: list[str], rows: int | None
) -> None:
    source = UntilBothHaveServed(lambda: [served for _, served in reader.stats.served])
    with DistilReader(
        source,
        service="s",
        teachers=addresses,
        teacher_batch_size=rows,
        canaries=CanaryPolicy(share=0.2),
    ) as reader:
        batches = list(reader)
        stats = reader.stats
    assert all(np.allclose(soft, logits_of(x), rtol=1e-2) for x, _, soft in batches)
    assert [int(ids[0]) for _, ids, _ in batches] == list(range(len(batches)))
    assert (stats.ejections, stats.liars, stats.dispute) == (0, 0, "")
    assert set(dict(stats.served)) == set(addresses)
    assert min(dict(stats.served).values()) > 0
    dtypes = [soft.dtype for _, _, soft in batches]
    wide = dtypes.index(np.dtype(np.float32))
    assert set(dtypes[wide:]) == {np.dtype(np.float32)}

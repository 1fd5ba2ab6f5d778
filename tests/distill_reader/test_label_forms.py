"""A reader that asks for compact labels, of our server and of one that knows no forms."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import DistilReader
from edl.errors import PoisonBatch
from edl.proto.arena import Array
from edl.proto.form_arrays import decode, encode
from edl.proto.forms import Form
from edl.proto.tensors import InferRequest
from edl.tests.scripted_teacher import ScriptedTeacher
from edl.tests.teacher.bench import Bench
from edl.tests.teacher.fakes import double_and_sum

BATCHES = 12


class Source:
    """Batches of 3 rows for a model of input [-1, 4]."""

    def __iter__(self) -> Iterator[Any]:
        for number in range(BATCHES):
            yield (self.at(number),)

    def at(self, number: int) -> Array:
        return np.random.default_rng(number).normal(0, 2, (3, 4)).astype(np.float32)


@pytest.fixture
def ours() -> Iterator[Bench]:
    bench = Bench(slots=4)
    yield bench
    bench.close()


@pytest.fixture
def foreign() -> Iterator[ScriptedTeacher]:
    """A server of the protocol that ignores what it does not know."""

    def plain(request: InferRequest) -> dict[str, Array]:
        return double_and_sum(request.inputs)

    teacher = ScriptedTeacher(plain)
    yield teacher
    teacher.stop()


def reader_of(*addresses: str, **options: Any) -> DistilReader:
    named = {"fetches": ["double"], **options}
    return DistilReader(Source(), service="resnet", teachers=addresses, **named)


@pytest.mark.parametrize(("form", "temperature"), [("topk:2", None), ("float16", 3.0)])
def test_a_mixed_pool_gives_dense_labels_that_do_not_depend_on_who_made_them(
    ours: Bench, foreign: ScriptedTeacher, form: str, temperature: float | None
) -> None:
    asked = Form.parse(form, temperature)
    assert asked is not None
    addresses = (ours.address, foreign.address)
    deadline, served = time.monotonic() + 30.0, set[str]()
    with reader_of(*addresses, label_form=form, temperature=temperature) as reader:
        while served != set(addresses):  # one may label an epoch before the other is reached
            assert time.monotonic() < deadline, served
            labels = [soft for _, soft in reader]
            served |= dict(reader.stats.served).keys()
            assert len(labels) == BATCHES
            for number, soft in enumerate(labels):
                x = Source().at(number)
                dense = decode("y", encode("y", 2 * x, asked), asked, asked.parameters(4))
                np.testing.assert_array_equal(soft, dense)


def test_the_parts_come_in_their_order_when_they_are_not_expanded(ours: Bench) -> None:
    with reader_of(ours.address, label_form={"double": "topk:2"}, expand_labels=False) as reader:
        for x, values, indices, tail in reader:
            assert indices.dtype == np.int64
            assert (indices[:, 0] == x.argmax(-1)).all()
            np.testing.assert_allclose(values[:, 0], 2 * x.max(-1), rtol=1e-3)
            assert tail.shape == (3,)


def test_forms_of_outputs_that_are_not_fetched_by_name(ours: Bench) -> None:
    with reader_of(ours.address, fetches=None, label_form={"double": "topk:2"}) as reader:
        for x, total, double in reader:
            np.testing.assert_allclose(total, x.sum(-1), rtol=1e-6)
            assert double.shape == (3, 4)


def test_a_form_that_the_model_cannot_give_is_said_in_the_training_loop(ours: Bench) -> None:
    words = "output 'double' has 4 classes, so topk:4 leaves none out: K must be below"
    with (
        reader_of(ours.address, label_form="topk:4") as reader,
        pytest.raises(PoisonBatch, match=words),
    ):
        list(reader)

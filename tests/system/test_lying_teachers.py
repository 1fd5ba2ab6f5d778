"""A teacher that answers with wrong labels is found out, and its labels are made again."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from edl.distill_reader import CanaryPolicy, DistilReader, LabelStore
from edl.distill_reader.options import Limits
from edl.proto.arena import Array
from edl.proto.tensors import InferRequest
from edl.scheduler.reader_core.delivery import MOST_AHEAD
from edl.tests.distill_reader.readers import kept_port, numbers_of
from edl.tests.scripted_teacher import ScriptedTeacher, logits_of
from edl.tests.system.conftest import FOR_EVER, Batches, taken_until
from edl.tests.waiting import wait_until

ROWS = 4
#: Of a batch with its labels.
BATCH_BYTES = ROWS * (3 + 10) * 4
NEWCOMERS = CanaryPolicy(share=0.0)


class Teacher(ScriptedTeacher):
    """A server that lies when it is told to."""

    def __init__(self, *, lies: bool = False, port: int = 0) -> None:
        self.lies = lies
        self.lied: set[int] = set()  # numbers of the batches of which it labelled rows wrongly
        super().__init__(self._label, port=port)

    def _label(self, request: InferRequest) -> dict[str, Array]:
        x, lies = request.inputs["x"], self.lies  # the test may change it meanwhile
        if lies:
            self.lied.update(int(value) // 1000 for value in x[:, 0])
        return {"logits": logits_of(x) * (-1 if lies else 1)}


def endless() -> Batches:
    return Batches(FOR_EVER, (ROWS, 3), logits_of)


def absent(stack: ExitStack) -> str:
    """An address at which nobody serves yet, and which nobody else is given."""
    return f"127.0.0.1:{stack.enter_context(kept_port())}"


def at(address: str, *, lies: bool = False) -> Teacher:
    return Teacher(lies=lies, port=int(address.rpartition(":")[2]))


def teachers(stack: ExitStack, *made: Teacher) -> list[str]:
    for teacher in made:
        stack.callback(teacher.stop)
    return [teacher.address for teacher in made]


def is_right(batch: Any) -> bool:
    x, _, soft = batch
    return np.allclose(soft, logits_of(x), rtol=1e-3)


class Deceived:
    """A reader whose buffer is full, in part of lies, and two witnesses that are not there yet."""

    def __init__(self, stack: ExitStack, **options: Any) -> None:
        self.liar, self.honest = Teacher(), Teacher()
        self.source = endless()
        self._stack = stack
        self.witnesses = [absent(stack), absent(stack)]
        addresses = teachers(stack, self.liar, self.honest)
        self.options: dict[str, Any] = {
            "service": "s",
            "teachers": [*addresses, *self.witnesses],
            "canaries": NEWCOMERS,
            "upper_bytes": 300 * BATCH_BYTES,
            "lower_bytes": 299 * BATCH_BYTES,
            **options,
        }
        self.reader = stack.enter_context(DistilReader(self.source, **self.options))
        self.stream = iter(self.reader)
        self.batches: list[Any] = []
        self.believed = 0  # batches that were taken before the liar was found out
        while not all(dict(self.reader.stats.served).get(name) for name in addresses):
            self.batches.append(next(self.stream))
        self.liar.lies = True
        while len(self.liar.lied) < 20:
            self.batches.append(next(self.stream))
        wait_until(lambda: self.reader.stats.state == "blocked")
        self._least = self.reader.stats.ready * 3 // 4  # the reader pulls again before

    def call_the_witnesses(self) -> None:
        """Two who contradict the liar."""
        teachers(self._stack, *map(at, self.witnesses))
        wait_until(lambda: {*self.witnesses} <= {*self.reader.stats.teachers})

    def step(self) -> None:
        """Take a batch; the buffer never runs out, so that lies remain in it."""
        wait_until(
            lambda: self.reader.stats.ready > self._least or self.reader.stats.ejections_for_lying
        )
        self.batches.append(next(self.stream))

    def go_on_until_it_is_found_out(self) -> None:
        while not self.reader.stats.ejections_for_lying:
            self.step()
        self.believed = len(self.batches)

    def check(self) -> None:
        """Take what is left, and look at everything."""
        self.batches += self.source.rest(self.stream)
        assert numbers_of(self.batches) == list(range(self.source.count))
        wrong = [number for number, batch in enumerate(self.batches) if not is_right(batch)]
        released = self.believed + MOST_AHEAD
        assert all(number < released for number in wrong), "lies after it was found out"
        assert {*wrong} < self.liar.lied, "what lay in the buffer was labelled again"


def test_what_a_liar_has_labelled_is_labelled_again(stack: ExitStack, tmp_path: Path) -> None:
    """Batches have labels of several teachers; only the liar's are made again, in the store too."""
    store = LabelStore(tmp_path / "labels.edl", 32 << 20)
    scene = Deceived(stack, limits=Limits(request_rows=6), store=store)
    scene.honest.stop()  # the liar is alone with those who contradict it
    while scene.honest.address in scene.reader.stats.teachers:
        scene.step()
    scene.call_the_witnesses()
    scene.go_on_until_it_is_found_out()
    stats = scene.reader.stats
    assert (stats.ejected, stats.ejected_for) == ((scene.liar.address,), ("lied",))
    assert stats.canaries > 0
    scene.check()
    assert scene.reader.stats.ejected == (scene.liar.address,), "for long"
    scene.reader.close()
    options = {**scene.options, "teachers": scene.witnesses[:1], "store": store}
    with DistilReader(scene.source, **options) as reader:
        scene.source.check(list(reader))


def test_one_that_lies_from_the_start_never_gets_in(stack: ExitStack) -> None:
    there, late, source = teachers(stack, Teacher(), Teacher()), absent(stack), endless()
    with DistilReader(source, service="s", teachers=[*there, late], upper_bytes=20_000) as reader:
        stream = iter(reader)
        batches = taken_until(
            stream, lambda: all(dict(reader.stats.served).get(name) for name in there)
        )
        liar = at(late, lies=True)
        teachers(stack, liar)
        wait_until(lambda: liar.address in reader.stats.teachers)
        batches += taken_until(stream, lambda: reader.stats.ejections_for_lying)
        assert reader.stats.ejected == (liar.address,)
        batches += source.rest(stream)
    assert numbers_of(batches) == list(range(source.count))
    assert all(map(is_right, batches))
    assert liar.lied, "it was asked"

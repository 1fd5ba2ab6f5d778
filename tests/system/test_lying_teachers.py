"""A teacher that answers labels of other samples is found out, and what it said is taken back.

Engines are real processes, teachers real servers; whether one lies is changed while it serves.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import CanaryPolicy, DistilReader, EnsemblePolicy, LabelStore
from edl.proto.arena import Array
from edl.proto.tensors import InferRequest
from edl.tests.scripted_teacher import ScriptedTeacher, logits_of
from edl.tests.system.conftest import FOR_EVER, Batches
from edl.tests.waiting import wait_until

ROWS = 4
#: Of a batch with its labels.
BATCH_BYTES = ROWS * (3 + 10) * 4
#: Of a training step, so that there are some between a lie and its discovery.
STEP_S = 0.01
EVERYTHING, NEWCOMERS = CanaryPolicy(share=1.0), CanaryPolicy(share=0.0)


class Teacher(ScriptedTeacher):
    """A server that can be told to lie.

    Attributes:
        lies: whether it does.
        lied: first values of the requests that it answered wrongly.
        noise: of its labels, as a part of them.
    """

    def __init__(self, *, lies: bool = False, noise: float = 0.0, port: int = 0) -> None:
        self.lies = lies
        self.lied: set[float] = set()
        self.noise = np.float32(1 + noise)
        super().__init__(self._label, port=port)

    def _label(self, request: InferRequest) -> dict[str, Array]:
        x = request.inputs["x"]
        if self.lies:
            self.lied.add(float(x[0, 0]))
        return {"logits": logits_of(x) * (-1 if self.lies else self.noise)}


def endless() -> Batches:
    return Batches(FOR_EVER, (ROWS, 3), logits_of)


def port_of(teacher: Teacher) -> int:
    return int(teacher.address.rpartition(":")[2])


def absent() -> Teacher:
    """One that has an address and does not serve there."""
    teacher = Teacher()
    teacher.stop()
    return teacher


def teachers(stack: ExitStack, *made: Teacher) -> list[str]:
    for teacher in made:
        stack.callback(teacher.stop)
    return [teacher.address for teacher in made]


def is_right(batch: Any) -> bool:
    x, _, soft = batch
    return np.allclose(soft, logits_of(x), rtol=1e-3)


def numbers_of(batches: list[Any]) -> list[int]:
    return [int(ids[0]) for _, ids, _ in batches]


class Deceived:
    """A reader whose buffer is full, in part of lies, and two witnesses that are not there yet."""

    def __init__(self, stack: ExitStack, **options: Any) -> None:
        self.liar, self.honest = Teacher(), Teacher()
        self.source = endless()
        self._stack = stack
        self.witnesses = [absent(), absent()]
        addresses = teachers(stack, self.liar, self.honest)
        self.options: dict[str, Any] = {
            "service": "s",
            "teachers": [*addresses, *(one.address for one in self.witnesses)],
            "canaries": NEWCOMERS,
            "upper_bytes": 100 * BATCH_BYTES,
            "lower_bytes": 99 * BATCH_BYTES,
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
        self.source.end(600)
        wait_until(lambda: self.reader.stats.state == "blocked")

    def call_the_witnesses(self) -> None:
        """The liar is alone with two who contradict it."""
        self.honest.stop()
        while self.honest.address in self.reader.stats.teachers:
            self.step()
        there = {*teachers(self._stack, *(Teacher(port=port_of(one)) for one in self.witnesses))}
        wait_until(lambda: there <= {*self.reader.stats.teachers})

    def step(self) -> None:
        self.batches.append(next(self.stream))
        time.sleep(STEP_S)

    def go_on_until_it_is_found_out(self) -> None:
        while not self.reader.stats.liars:
            self.step()
        self.believed = len(self.batches)

    def check(self) -> None:
        """Take what is left, and look at everything."""
        self.batches += self.stream
        assert numbers_of(self.batches) == list(range(self.source.count))
        wrong = [number for number, batch in enumerate(self.batches) if not is_right(batch)]
        assert all(number < self.believed for number in wrong), "lies after it was found out"
        assert len(wrong) < len(self.liar.lied), "what lay in the buffer was taken back"


@pytest.mark.parametrize("rows", [None, 6])
def test_what_a_liar_has_labelled_is_taken_back(stack: ExitStack, rows: int | None) -> None:
    """With `rows`, a batch has labels of several teachers; only the liar's are recalled."""
    scene = Deceived(stack, teacher_batch_size=rows)
    scene.call_the_witnesses()
    scene.go_on_until_it_is_found_out()
    stats = scene.reader.stats
    assert (stats.ejected, stats.ejected_for) == ((scene.liar.address,), ("lied",))
    assert stats.canaries > 0
    assert stats.hedges == 0, "copies for comparison are no hedges"
    scene.check()
    assert scene.reader.stats.ejected == (scene.liar.address,), "for long"


def test_without_order_too(stack: ExitStack) -> None:
    scene = Deceived(stack, ordered=False)
    scene.call_the_witnesses()
    scene.go_on_until_it_is_found_out()
    rest = list(scene.stream)
    assert all(map(is_right, rest))
    assert sorted(numbers_of(scene.batches + rest)) == list(range(scene.source.count))


def test_the_engine_dies_while_batches_are_recalled(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Deceived(stack)
    # Only the trainer's side of the stream knows when labels are recalled.
    stream = scene.reader._pipeline.stream  # noqa: SLF001
    recall, recalled = stream.recall, []

    def deadly(number: int) -> bool:
        if not (found := recall(number)):
            return found
        recalled.append(number)
        if len(recalled) == 2:
            os.kill(scene.reader.engine_pid, signal.SIGKILL)
        return found

    monkeypatch.setattr(stream, "recall", deadly)
    scene.call_the_witnesses()
    while len(recalled) < 2:
        scene.step()
    scene.liar.lies = False  # the next engine knows nothing of it
    scene.believed = len(scene.batches)
    scene.check()
    assert scene.reader.stats.engine_restarts == 1


def test_what_a_liar_made_for_an_engine_that_died_is_taken_back_too(stack: ExitStack) -> None:
    """The trainer's side knows who has made the labels that it holds, and tells the next engine."""
    scene = Deceived(stack)
    lied = set(scene.liar.lied)
    os.kill(scene.reader.engine_pid, signal.SIGKILL)
    wait_until(lambda: scene.reader.stats.engine_restarts == 1)
    there = {*teachers(stack, *(Teacher(port=port_of(one)) for one in scene.witnesses))}
    wait_until(lambda: there <= {*scene.reader.stats.teachers})
    scene.go_on_until_it_is_found_out()
    scene.check()
    late = scene.batches[scene.believed :]
    assert any(float(x[0, 0]) in lied for x, _, _ in late), "none of its lies was left to take back"


def test_nothing_of_a_liar_stays_in_the_store(stack: ExitStack, tmp_path: Path) -> None:
    store = LabelStore(tmp_path / "labels.edl", 32 << 20)
    scene = Deceived(stack, store=store)
    scene.call_the_witnesses()
    scene.go_on_until_it_is_found_out()
    scene.check()
    scene.reader.close()
    options = {**scene.options, "teachers": [scene.witnesses[0].address], "store": store}
    with DistilReader(scene.source, **options) as reader:
        scene.source.check(list(reader))


def test_of_an_ensemble_only_the_liars_part_is_made_anew(stack: ExitStack) -> None:
    other = Teacher()
    made = [Teacher() for _ in range(3)]
    liar = made[0]
    source = endless()
    with DistilReader(
        source,
        service={"a": 0.5, "b": 0.5},
        teachers={"a": teachers(stack, *made), "b": teachers(stack, other)},
        ensemble=EnsemblePolicy(soft_label_is="probabilities"),  # so that sums are plain
        canaries=CanaryPolicy(share=0.1),
        upper_bytes=100 * BATCH_BYTES,
    ) as reader:
        stream = iter(reader)
        batches = []
        while not all(dict(reader.stats.served).get(one.address) for one in made):
            batches.append(next(stream))
        source.end(300)
        liar.lies = True
        while not reader.stats.liars:
            batches.append(next(stream))
            time.sleep(STEP_S)
        believed, asked = len(batches), other.requests
        batches += stream
    assert numbers_of(batches) == list(range(source.count))
    assert all(map(is_right, batches[believed:]))
    assert other.requests <= source.count, "nothing of the other service was asked for twice"
    assert asked > believed


def test_one_that_lies_from_the_start_never_gets_in(stack: ExitStack) -> None:
    there, late, source = teachers(stack, Teacher(), Teacher()), absent(), endless()
    with DistilReader(
        source, service="s", teachers=[*there, late.address], upper_bytes=20_000
    ) as reader:
        stream = iter(reader)
        batches = []
        while not all(dict(reader.stats.served).get(name) for name in there):
            batches.append(next(stream))
        source.end(2000)
        liar = Teacher(lies=True, port=port_of(late))
        teachers(stack, liar)
        wait_until(lambda: liar.address in reader.stats.teachers)
        while not reader.stats.liars:
            batches.append(next(stream))
            time.sleep(STEP_S)
        assert reader.stats.ejected == (liar.address,)
        batches += stream
    assert numbers_of(batches) == list(range(source.count))
    assert all(map(is_right, batches))
    assert liar.lied, "it was asked"


def test_noise_is_no_lie_however_batches_are_cut(stack: ExitStack) -> None:
    source = Batches(200, (ROWS, 3), logits_of)
    addresses = teachers(stack, *(Teacher(noise=1e-3 * n) for n in range(3)))
    with DistilReader(
        source, service="s", teachers=addresses, canaries=EVERYTHING, teacher_batch_size=6
    ) as reader:
        batches = list(reader)
        stats = reader.stats
    assert numbers_of(batches) == list(range(source.count))
    assert all(np.allclose(soft, logits_of(x), rtol=1e-2) for x, _, soft in batches)
    assert stats.canaries > 10
    assert (stats.liars, stats.ejections) == (0, 0)


def test_of_two_that_differ_a_third_decides(stack: ExitStack) -> None:
    liar, honest, late = Teacher(lies=True), Teacher(), absent()
    source = endless()
    addresses = [*teachers(stack, liar, honest), late.address]
    with DistilReader(source, service="s", teachers=addresses, upper_bytes=20_000) as reader:
        stream = iter(reader)
        wait_until(lambda: next(stream) is not None and liar.requests > 0 and honest.requests > 0)
        source.end(2000)
        assert reader.stats.liars == 0, "who of the two is not known"
        wait_until(lambda: "another one is needed to tell who is wrong" in reader.stats.dispute)
        for word in (liar.address, honest.address, "'s'", "of its greatest value", "'logits'"):
            assert word in reader.stats.dispute
        teachers(stack, Teacher(port=port_of(late)))
        wait_until(lambda: late.address in reader.stats.teachers)
        while not reader.stats.liars:
            next(stream)
            time.sleep(STEP_S)
        assert reader.stats.ejected == (liar.address,)
        assert reader.stats.dispute == ""
        assert all(map(is_right, stream))

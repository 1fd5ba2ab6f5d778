"""Labels of several services, in compact forms, from a store, and of a service that is upgraded."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.coordinator import upgrade
from edl.distill_reader import DistilReader, EnsemblePolicy, LabelStore
from edl.errors import NoTeacherAvailable
from edl.proto.arena import Array
from edl.proto.form_arrays import decode, encode, softmax
from edl.proto.forms import Form
from edl.supervise import Process, python_command, start
from edl.tests.scripted_teacher import logits_of
from edl.tests.system.conftest import (
    FOR_EVER,
    ROWS,
    SPEC,
    Batches,
    Service,
    keeps_what_it_gets,
    taken_until,
)
from edl.tests.system.slow_network import FEATURES, NEXT_MODEL, labels_of
from edl.tests.system.teacher_process import Teacher, serving
from edl.tests.teacher.linear import CLASSES, weights
from edl.tests.waiting import wait_until

WIDTH = 4
#: What the models of the services make of a batch: logits times these.
FACTORS = {"a": 1.0, "b": -2.0}
WEIGHTS = {"a": 0.7, "b": 0.3}
START_S = 20.0
#: Of a reader that labels no more than some batches ahead of its training loop.
BOUND = {"upper_bytes": 5 * ROWS * (WIDTH + 10) * 4, "lower_bytes": 0}


class Small:
    """Batches whose softmax is no single class."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        number = 0
        while number < self.count:
            rng = np.random.default_rng(number)
            yield rng.normal(0, 0.1, (ROWS, WIDTH)).astype(np.float32), number
            number += 1


class Teachers:
    """Processes by service, with their addresses; killed at will, started again on their port."""

    def __init__(self, stack: ExitStack, each: int, seconds: float = 0.02) -> None:
        self._stack = stack
        self._seconds = seconds
        self.processes: dict[str, list[Process]] = {name: [] for name in FACTORS}
        self.addresses: dict[str, list[str]] = {name: [] for name in FACTORS}
        for name in FACTORS:
            for _ in range(each):
                self.start(name)

    def start(self, name: str, port: int = 0) -> None:
        process = start(
            python_command(
                "teacher",
                "edl.tests.scripted_teacher",
                *("--seconds", str(self._seconds), "--factor", str(FACTORS[name])),
                *("--port", str(port)),
            )
        )
        self._stack.callback(process.stop, 0.0)
        address = process.expect(r"^ready on (\S+)$", START_S)[1]
        if not port:
            self.addresses[name].append(address)
        self.processes[name].append(process)

    def kill(self, name: str, index: int = 0) -> None:
        self.processes[name][index].kill()


def probabilities(x: Array, service: str) -> Array:
    return softmax(logits_of(x) * np.float32(FACTORS[service]), 1.0)


def mean(x: Array, shares: dict[str, float]) -> Array:
    total = np.zeros((ROWS, 10), np.float64)
    for service, share in shares.items():
        total += share * probabilities(x, service).astype(np.float64)
    return total


def ensemble_over(teachers: Teachers, source: Small, **options: Any) -> DistilReader:
    return DistilReader(source, service=WEIGHTS, teachers=teachers.addresses, **options)


@pytest.mark.parametrize("rows", [None, 5])
def test_labels_are_the_weighted_mean_whichever_teacher_is_killed(
    stack: ExitStack, rows: int | None
) -> None:
    teachers = Teachers(stack, each=2)
    source = Small(FOR_EVER)
    with ensemble_over(teachers, source, teacher_batch_size=rows, **BOUND) as reader:
        iterator = iter(reader)
        batches = []
        for name in WEIGHTS:
            process, address = teachers.processes[name][0], teachers.addresses[name][0]
            served = partial(lambda one: one in dict(reader.stats.served), address)
            batches += taken_until(iterator, served)
            batches += keeps_what_it_gets(process, address, reader, iterator)
            process.kill()
        source.count = len(batches) + 20
        batches += iterator
        assert [number for _, number, _ in batches] == list(range(len(batches)))
        for x, _, soft in batches:
            assert soft.dtype == np.float32
            np.testing.assert_allclose(soft, mean(x, WEIGHTS), rtol=0, atol=1e-6)
        assert reader.stats.weights == tuple(WEIGHTS.items())
        assert reader.stats.partly_labelled == reader.stats.unlabelled == 0
        assert reader.stats.resends + reader.stats.hedges > 0


def test_a_missing_service_is_waited_for(stack: ExitStack) -> None:
    teachers = Teachers(stack, each=1)
    port = int(teachers.addresses["b"][0].rpartition(":")[2])
    source = Small(40)
    with ensemble_over(teachers, source, **BOUND) as reader:
        iterator = iter(reader)
        taken = [next(iterator) for _ in range(5)]
        teachers.kill("b")
        loop = threading.Thread(target=lambda: taken.extend(iterator), daemon=True)
        loop.start()
        wait_until(lambda: "b" not in str(reader.stats.served) and len(reader.stats.teachers) == 1)
        teachers.start("b", port)
        loop.join(60.0)
    assert [number for _, number, _ in taken] == list(range(40))
    for x, _, soft in taken:
        np.testing.assert_allclose(soft, mean(x, WEIGHTS), rtol=0, atol=1e-6)


def test_a_missing_service_is_gone_without_where_that_is_tolerated(stack: ExitStack) -> None:
    teachers = Teachers(stack, each=1)
    policy = EnsemblePolicy("tolerate", missing_after_s=0.5, with_weights=True)
    with ensemble_over(teachers, Small(40), ensemble=policy, **BOUND) as reader:
        iterator = iter(reader)
        batches = [next(iterator) for _ in range(5)]
        teachers.kill("b")
        batches += iterator
        assert reader.stats.partly_labelled > 0
        assert reader.stats.weights == (("a", 1.0),)
    assert [number for _, number, *_ in batches] == list(range(40))
    alone = 0
    for x, _, soft, used in batches:
        assert used.shape == (ROWS, 2)
        assert (used == used[0]).all()
        shares = dict(zip(WEIGHTS, used[0].tolist(), strict=True))
        alone += shares == {"a": 1.0, "b": 0.0}
        np.testing.assert_allclose(soft, mean(x, shares), rtol=0, atol=1e-6)
    assert alone > 20


def test_probabilities_are_averaged_as_they_come(stack: ExitStack) -> None:
    """A temperature is the teachers' to apply; these know of none, and so the engine does."""
    teachers = Teachers(stack, each=1)
    source = Small(5)
    with ensemble_over(teachers, source, fetches=["logits"], temperature=2.0) as reader:
        for x, _, soft in reader:
            wanted = sum(
                share * softmax(logits_of(x) * np.float32(FACTORS[name]), 2.0)
                for name, share in WEIGHTS.items()
            )
            np.testing.assert_allclose(soft, wanted, rtol=0, atol=1e-6)
    as_they_are = EnsemblePolicy(soft_label_is="probabilities")
    with ensemble_over(teachers, source, ensemble=as_they_are) as reader:
        for x, _, soft in reader:
            wanted = logits_of(x) * np.float32(0.7 - 2.0 * 0.3)
            np.testing.assert_allclose(soft, wanted, rtol=1e-5, atol=1e-5)


def test_with_one_service_gone_for_good_the_policy_is_kept(stack: ExitStack) -> None:
    teachers = Teachers(stack, each=1)
    options = {"no_teacher": "fail", "no_teacher_grace_s": 0.3, **BOUND}
    with ensemble_over(teachers, Small(1000), **options) as reader:
        iterator = iter(reader)
        next(iterator)
        teachers.kill("b")
        with pytest.raises(NoTeacherAvailable, match="no teacher of service 'b'"):
            list(iterator)


def test_an_epoch_that_is_left_leaves_no_labels_behind(stack: ExitStack) -> None:
    teachers = Teachers(stack, each=1, seconds=0.0)
    with ensemble_over(teachers, Small(200), upper_bytes=20_000, lower_bytes=0) as reader:
        for _ in range(20):
            for _, number, _ in reader:
                if number == 7:
                    break
        for x, _, soft in reader:
            np.testing.assert_allclose(soft, mean(x, WEIGHTS), rtol=0, atol=1e-6)
        # No figure that users get says how much memory labels have.
        arena = reader._pipeline.engine._life.labels  # noqa: SLF001
        arena.memory(0, 1)
        assert arena.size_bytes <= 8 << 20


class Normal:
    """20 batches of 6 rows."""

    def __iter__(self) -> Iterator[Any]:
        for number in range(20):
            x = np.random.default_rng(number).normal(size=(6, 4)).astype(np.float32)
            yield x, np.full(6, number)


@pytest.fixture(scope="module")
def linear() -> Iterator[Teacher]:
    with serving(model="edl.tests.teacher.linear:good") as teacher:
        yield teacher


def dense(x: Array, form: Form) -> Array:
    """What the training loop should get."""
    sent = encode("logits", x @ weights(), form)
    return decode("logits", sent, form, form.parameters(CLASSES))


@pytest.mark.parametrize(
    ("text", "temperature"), [("topk:2", None), ("topk:2", 2.0), ("bfloat16", None), (None, 4.0)]
)
def test_a_training_loop_gets_dense_labels_whatever_travelled(
    linear: Teacher, text: str | None, temperature: float | None
) -> None:
    form = Form.parse(text, temperature)
    assert form is not None
    asked: dict[str, Any] = {"label_form": text, "temperature": temperature}
    with DistilReader(Normal(), service="m", teachers=[linear.address], **asked) as reader:
        batches = list(reader)
    assert [int(numbers[0]) for _, numbers, _ in batches] == list(range(20))
    for x, _, soft in batches:
        assert soft.dtype == np.float32
        # The teacher's sums are of other micro-batches: the last bit of a bfloat16 may differ.
        np.testing.assert_allclose(soft, dense(x, form), rtol=1e-2, atol=1e-3)


def test_what_travels_is_compact_and_says_what_it_is(linear: Teacher) -> None:
    x = np.random.default_rng(1).normal(size=(100, 4)).astype(np.float32)
    asked = {"logits": {"form": "topk:1", "temperature": 2.0}}
    answer = linear.infer({"x": x}, outputs=["logits"], output_parameters=asked)
    assert sum(array.nbytes for array in answer.outputs.values()) == 100 * (2 + 1 + 4)
    said = {"form": "topk:1", "temperature": 2.0, "classes": CLASSES}
    assert answer.output_parameters == dict.fromkeys(answer.outputs, said)
    winners = (x @ weights()).argmax(-1)
    np.testing.assert_array_equal(answer.outputs["logits.indices"][:, 0], winners)
    total = answer.outputs["logits.values"][:, 0] + answer.outputs["logits.tail"]
    np.testing.assert_allclose(total, 1.0, atol=1e-3)


SAMPLES = 240


class Shuffled:
    """Samples as (x, numbers) batches, in an order and of a size that may change."""

    def __init__(self, order: Sequence[int], size: int) -> None:
        self.order = order
        self.size = size

    def __iter__(self) -> Iterator[Any]:
        for first in range(0, len(self.order), self.size):
            numbers = np.asarray(self.order[first : first + self.size])
            yield x_of(numbers), numbers


def x_of(numbers: Array) -> Array:
    return np.outer(numbers + 1, np.arange(FEATURES)).astype(np.float32)


def test_a_filled_store_outlives_its_teachers_and_the_coordinator(
    service: Service, set_pace: Callable[[float], None], tmp_path: Path, rng: random.Random
) -> None:
    store = LabelStore(tmp_path / "labels.edl", 64 << 20)
    source = Shuffled(range(SAMPLES), 8)
    set_pace(0.002)
    a, b = service.add("a", "b")
    with service.reader(source, teachers_min=2, store=store) as reader:
        for number, (x, numbers, soft) in enumerate(reader):
            np.testing.assert_array_equal(soft, labels_of(x_of(numbers)))
            np.testing.assert_array_equal(soft, labels_of(x))
            if number == 5:
                service.kill(a)
    with service.reader(source, store=store) as reader:
        service.kill(b)
        for size in (8, 11):  # the same order, and another
            check_store(reader, source)
            source.order, source.size = rng.sample(range(SAMPLES), SAMPLES), size
        assert (reader.stats.store_hits, reader.stats.store_misses) == (2 * SAMPLES, 0)
    with socket.socket() as reserved:  # bound and not listening: nobody answers there
        reserved.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{reserved.getsockname()[1]}"
        with DistilReader(source, service=service.name, coordinator=url, store=store) as reader:
            check_store(reader, source)


def check_store(reader: DistilReader, source: Shuffled) -> None:
    """One epoch: each sample in its turn, with the labels of that sample, bit for bit."""
    seen: list[int] = []
    for x, numbers, soft in reader:
        np.testing.assert_array_equal(x, x_of(numbers))
        np.testing.assert_array_equal(soft, labels_of(x))
        seen += numbers.tolist()
    assert seen == list(source.order)


NEXT_SPEC = replace(SPEC, model=NEXT_MODEL)


@dataclass
class Upgrading:
    """A service with a teacher of the old content and one of the next, and a reader on the old.

    Attributes:
        old: content id.
        new: content id.
    """

    service: Service
    source: Batches
    reader: DistilReader
    old: str = ""
    new: str = ""

    def begin(self) -> Iterator[Any]:
        """An epoch that goes on until its rest is asked for."""
        self.source.count = FOR_EVER
        return iter(self.reader)

    def offsets(self, batches: list[Any]) -> list[int]:
        """The content that labelled each batch: 1 the old one, 2 the next; all else is checked."""
        assert [int(numbers[0]) for _, numbers, _ in batches] == list(range(self.source.count))
        found = []
        for x, numbers, soft in batches:
            np.testing.assert_array_equal(x, self.source.at(int(numbers[0])))
            offset = 2 if np.array_equal(soft, labels_of(x, 2.0)) else 1
            np.testing.assert_array_equal(soft, labels_of(x, offset))
            found.append(offset)
        return found

    def announce(self, at: str) -> None:
        upgrade(self.service.url, self.service.name, self.new, at)

    def hear_of_it(self, iterator: Iterator[Any]) -> list[Any]:
        """Batches until managers announce the next content, and some that follow."""
        service = self.service
        batches = taken_until(iterator, lambda: service.status.next_content_id == self.new)
        return batches + [next(iterator) for _ in range(50)]

    def epochs_until_new(self) -> None:
        """Every epoch has labels of one content."""

        def moved() -> bool:
            (offset,) = set(self.offsets(list(self.reader)))
            return offset == 2

        wait_until(moved)
        assert set(self.offsets(list(self.reader))) == {2}
        assert self.reader.stats.content_id == self.new


@pytest.fixture
def upgrading(service: Service, set_pace: Callable[[float], None]) -> Iterator[Upgrading]:
    service.add("old")
    set_pace(0.02 / ROWS)
    with ExitStack() as undo:
        source, bounds = Batches(60), {"upper_bytes": 4000, "wait_timeout_s": 60.0}
        reader = undo.enter_context(service.reader(source, **bounds))
        found = Upgrading(service, source, reader)
        assert set(found.offsets(list(reader))) == {1}
        service.add("new", spec=NEXT_SPEC)
        wait_until(lambda: len(service.status.teachers) == 2)
        contents = {one.teacher_id: one.content_id for one in service.status.teachers}
        found.old, found.new = (contents[f"{service.name}-{name}"] for name in ("old", "new"))
        assert found.old != found.new
        yield found


def test_at_the_epoch_the_running_one_ends_on_the_old_content(upgrading: Upgrading) -> None:
    iterator = upgrading.begin()
    batches = [next(iterator) for _ in range(10)]
    upgrading.announce("epoch")
    batches += upgrading.hear_of_it(iterator)
    batches += upgrading.source.rest(iterator)
    assert set(upgrading.offsets(batches)) == {1}
    upgrading.epochs_until_new()
    assert upgrading.reader.stats.resends == 0
    wait_until(lambda: dict(upgrading.service.status.content_students).get(upgrading.old, 0) == 0)


def test_at_once_the_stream_changes_over_at_one_batch(upgrading: Upgrading) -> None:
    iterator = upgrading.begin()
    batches = [next(iterator) for _ in range(10)]
    upgrading.announce("now")
    batches += taken_until(iterator, lambda: upgrading.reader.stats.content_id == upgrading.new)
    batches += [next(iterator) for _ in range(20)]  # more than the buffer has
    batches += upgrading.source.rest(iterator)
    found = upgrading.offsets(batches)
    assert found == sorted(found)
    assert (found[0], found[-1]) == (1, 2)
    assert set(upgrading.offsets(list(upgrading.reader))) == {2}


def test_a_dead_engine_does_not_mix_an_epoch(upgrading: Upgrading) -> None:
    iterator = upgrading.begin()
    batches = [next(iterator) for _ in range(10)]
    upgrading.announce("epoch")
    os.kill(upgrading.reader.engine_pid, signal.SIGKILL)
    batches += upgrading.hear_of_it(iterator)
    batches += upgrading.source.rest(iterator)
    assert set(upgrading.offsets(batches)) == {1}
    upgrading.epochs_until_new()


def test_the_next_content_loses_its_only_teacher_and_gets_another(upgrading: Upgrading) -> None:
    iterator = upgrading.begin()
    batches = [next(iterator) for _ in range(5)]
    upgrading.announce("now")
    batches += taken_until(iterator, lambda: upgrading.reader.stats.content_id == upgrading.new)
    upgrading.service.kill(f"{upgrading.service.name}-new")
    (newer,) = upgrading.service.add("newer", spec=NEXT_SPEC)
    batches += taken_until(iterator, lambda: newer in upgrading.reader.stats.teachers)
    batches += [next(iterator) for _ in range(20)]
    batches += upgrading.source.rest(iterator)
    found = upgrading.offsets(batches)
    assert found == sorted(found)
    assert found[-1] == 2

"""Labels of two services as one, with real processes of both killed on the way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import DistilReader, EnsemblePolicy
from edl.errors import NoTeacherAvailable
from edl.proto.arena import Array
from edl.proto.form_arrays import softmax
from edl.supervise import Process, python_command, start
from edl.tests.ground.programs import wait_for
from edl.tests.scripted_teacher import logits_of
from edl.tests.system.conftest import is_busy

ROWS, WIDTH = 8, 4
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
        for number in range(self.count):
            rng = np.random.default_rng(number)
            yield rng.normal(0, 0.1, (ROWS, WIDTH)).astype(np.float32), number


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


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def probabilities(x: Array, service: str) -> Array:
    return softmax(logits_of(x) * np.float32(FACTORS[service]), 1.0)


def mean(x: Array, shares: dict[str, float]) -> Array:
    total = np.zeros((ROWS, 10), np.float64)
    for service, share in shares.items():
        total += share * probabilities(x, service).astype(np.float64)
    return total


def reader_over(teachers: Teachers, source: Small, **options: Any) -> DistilReader:
    return DistilReader(source, service=WEIGHTS, teachers=teachers.addresses, **options)


@pytest.mark.parametrize("rows", [None, 5])
def test_labels_are_the_weighted_mean_whichever_teacher_is_killed(
    stack: ExitStack, rows: int | None
) -> None:
    teachers = Teachers(stack, each=2)
    source = Small(60)
    kills = {15: "a", 35: "b"}  # at that batch, or the next one at which it has something to do
    with reader_over(teachers, source, teacher_batch_size=rows, **BOUND) as reader:
        for number, (x, told, soft) in enumerate(reader):
            assert told == number
            assert soft.dtype == np.float32
            np.testing.assert_allclose(soft, mean(x, WEIGHTS), rtol=0, atol=1e-6)
            due = [at for at in kills if at <= number]
            if due and is_busy(reader, teachers.addresses[kills[due[0]]][0]):
                teachers.kill(kills.pop(due[0]))
        assert number == source.count - 1
        assert not kills
        assert reader.stats.weights == tuple(WEIGHTS.items())
        assert reader.stats.partly_labelled == reader.stats.unlabelled == 0
        assert reader.stats.resends > 0


def test_a_missing_service_is_waited_for(stack: ExitStack) -> None:
    teachers = Teachers(stack, each=1)
    port = int(teachers.addresses["b"][0].rpartition(":")[2])
    source = Small(40)
    with reader_over(teachers, source, **BOUND) as reader:
        iterator = iter(reader)
        taken = [next(iterator) for _ in range(5)]
        teachers.kill("b")
        loop = threading.Thread(target=lambda: taken.extend(iterator), daemon=True)
        loop.start()
        wait_for(lambda: "b" not in str(reader.stats.served) and len(reader.stats.teachers) == 1)
        teachers.start("b", port)
        loop.join(60.0)
    assert [number for _, number, _ in taken] == list(range(40))
    for x, _, soft in taken:
        np.testing.assert_allclose(soft, mean(x, WEIGHTS), rtol=0, atol=1e-6)


def test_a_missing_service_is_gone_without_where_that_is_tolerated(stack: ExitStack) -> None:
    teachers = Teachers(stack, each=1)
    policy = EnsemblePolicy("tolerate", missing_after_s=0.5, with_weights=True)
    with reader_over(teachers, Small(40), ensemble=policy, **BOUND) as reader:
        iterator = iter(reader)
        batches = [next(iterator) for _ in range(5)]
        teachers.kill("b")
        batches += iterator
        assert reader.stats.partly_labelled > 0
        assert reader.stats.weights == (("a", 1.0),)
    assert [number for _, number, *_ in batches] == list(range(40))
    alone = 0
    for x, _, soft, weights in batches:
        assert weights.shape == (ROWS, 2)
        assert (weights == weights[0]).all()
        shares = dict(zip(WEIGHTS, weights[0].tolist(), strict=True))
        alone += shares == {"a": 1.0, "b": 0.0}
        np.testing.assert_allclose(soft, mean(x, shares), rtol=0, atol=1e-6)
    assert alone > 20


def test_probabilities_are_averaged_as_they_come(stack: ExitStack) -> None:
    """A temperature is the teachers' to apply; these know of none, and so the engine does."""
    teachers = Teachers(stack, each=1)
    source = Small(5)
    with reader_over(teachers, source, fetches=["logits"], temperature=2.0) as reader:
        for x, _, soft in reader:
            wanted = sum(
                share * softmax(logits_of(x) * np.float32(FACTORS[name]), 2.0)
                for name, share in WEIGHTS.items()
            )
            np.testing.assert_allclose(soft, wanted, rtol=0, atol=1e-6)
    as_they_are = EnsemblePolicy(soft_label_is="probabilities")
    with reader_over(teachers, source, ensemble=as_they_are) as reader:
        for x, _, soft in reader:
            wanted = logits_of(x) * np.float32(0.7 - 2.0 * 0.3)
            np.testing.assert_allclose(soft, wanted, rtol=1e-5, atol=1e-5)


def test_with_one_service_gone_for_good_the_policy_is_kept(stack: ExitStack) -> None:
    teachers = Teachers(stack, each=1)
    options = {"no_teacher": "fail", "no_teacher_grace_s": 0.3, **BOUND}
    with reader_over(teachers, Small(1000), **options) as reader:
        iterator = iter(reader)
        next(iterator)
        teachers.kill("b")
        with pytest.raises(NoTeacherAvailable, match="no teacher of service 'b'"):
            list(iterator)


def test_an_epoch_that_is_left_leaves_no_labels_behind(stack: ExitStack) -> None:
    teachers = Teachers(stack, each=1, seconds=0.0)
    with reader_over(teachers, Small(200), upper_bytes=20_000, lower_bytes=0) as reader:
        for _ in range(20):
            for _, number, _ in reader:
                if number == 7:
                    break
        for x, _, soft in reader:
            np.testing.assert_allclose(soft, mean(x, WEIGHTS), rtol=0, atol=1e-6)
        arena = reader._pipeline.engine._life.labels
        arena.memory(0, 1)
        assert arena.size_bytes <= 8 << 20

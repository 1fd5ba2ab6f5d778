"""A reader and its teachers on one host: batches stay in the reader's memory, whatever dies."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest

from edl.distill_reader import DistilReader
from edl.tests.ground.programs import wait_for
from edl.tests.leaks import Belongings, without_neighbours
from edl.tests.system.conftest import is_busy
from edl.tests.system.teacher_process import ANSWER_S, Teacher, serving

MODEL = "edl.tests.teacher.functions:slow"
ROWS, COLUMNS = 4, 8192
BATCH_BYTES = ROWS * COLUMNS * 4


class Batches:
    """A re-iterable of batches of 128 KB, each different and known."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.count):
            yield np.full((ROWS, COLUMNS), number, np.float32), np.full(ROWS, number)

    def check(self, batches: list[Any]) -> None:
        assert [int(numbers[0]) for _, numbers, _ in batches] == list(range(self.count))
        for x, _, soft in batches:
            np.testing.assert_array_equal(soft, x * 2)


def received_bytes(teacher: Teacher) -> float:
    (said,) = [line for line in teacher.process.tail() if line.startswith("metrics on ")]
    with urllib.request.urlopen(said.removeprefix("metrics on "), timeout=ANSWER_S) as page:
        lines: list[str] = page.read().decode().splitlines()
    (line,) = [line for line in lines if line.startswith("edl_teacher_received_bytes_total ")]
    return float(line.split()[1])


def labelled(source: Batches, *teachers: Teacher, **options: Any) -> list[Any]:
    addresses = [teacher.address for teacher in teachers]
    with DistilReader(source, service="m", teachers=addresses, **options) as reader:
        # Copies: what is held would have the memory grow.
        return [tuple(part.copy() for part in batch) for batch in reader]


def test_batches_are_not_sent_and_labels_are_the_same() -> None:
    source = Batches(100)
    with serving("--metrics-listen", "0", model=MODEL) as teacher:
        before = Belongings.now().segments
        source.check(labelled(source, teacher))
        assert received_bytes(teacher) < BATCH_BYTES, "less than one of them"
        assert without_neighbours(Belongings.now().segments - before) == frozenset()
        source.check(labelled(source, teacher, shared_memory=False))
        assert received_bytes(teacher) > source.count * BATCH_BYTES


def sent_again(reader: DistilReader) -> bool:
    return reader.stats.resends + reader.stats.hedges > 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_teacher_that_dies_or_stands_still_in_mid_request_spoils_nothing(
    how: signal.Signals,
) -> None:
    source = Batches(60)
    with serving(model=MODEL) as first, serving(model=MODEL) as second:
        addresses = [first.address, second.address]
        with DistilReader(
            source,
            service="m",
            teachers=addresses,
            request_timeout_s=3.0,
            upper_bytes=10 * BATCH_BYTES,  # so that they are not all labelled before
        ) as reader:
            iterator = iter(reader)
            batches = [next(iterator) for _ in range(5)]
            while not is_busy(reader, first.address):
                batches.append(next(iterator))
            os.kill(first.process.pid, signal.SIGSTOP)  # whatever it has by now, it keeps
            while not (is_busy(reader, first.address) or sent_again(reader)):
                batches.append(next(iterator))
            os.kill(first.process.pid, how)
            batches += [tuple(part.copy() for part in batch) for batch in iterator]
            if how == signal.SIGSTOP:  # its slots have long been given to other batches
                os.kill(first.process.pid, signal.SIGCONT)
                again = [tuple(part.copy() for part in batch) for batch in reader]
                source.check(again)
            assert sent_again(reader)
        source.check(batches)


def test_a_teacher_lets_go_of_the_memory_of_a_reader_that_is_gone() -> None:
    with serving(model=MODEL) as teacher:
        server = psutil.Process(teacher.process.pid)

        def holds_it() -> bool:
            return any("edl-lent" in kept.path for kept in server.memory_maps())

        with DistilReader(Batches(20), service="m", teachers=[teacher.address]) as reader:
            next(iter(reader))
            assert holds_it()
        wait_for(lambda: not holds_it())

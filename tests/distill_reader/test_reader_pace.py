"""How far a reader reads ahead, and whom it waits for: the student, the teachers or the source."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from edl.tests.distill_reader.test_reader import Batches, reader_of, until
from edl.tests.scripted_teacher import ScriptedTeacher


@pytest.fixture
def teacher() -> Iterator[ScriptedTeacher]:
    teacher = ScriptedTeacher()
    yield teacher
    teacher.stop()


def test_the_buffer_stops_at_its_upper_threshold(teacher: ScriptedTeacher) -> None:
    source = Batches(300, shape=(256,))  # 4 KiB a batch
    with reader_of(source, teacher, upper_bytes=64 << 10, lower_bytes=16 << 10) as reader:
        iterator = iter(reader)
        next(iterator)
        until(lambda: reader.stats.state == "blocked")
        stopped = reader.stats
        assert (64 << 10) < stopped.volume_bytes <= (64 << 10) + 5 * (5 << 10)
        batches = [*iterator]
        assert [int(ids[0]) for _, ids, _ in batches] == list(range(1, 300))
        assert reader.stats.blocked_s > 0


@pytest.mark.serial
def test_a_slow_source_is_waited_for_and_never_raises_the_want(teacher: ScriptedTeacher) -> None:
    class Slow(Batches):
        def __iter__(self) -> Iterator[Any]:
            for batch in super().__iter__():
                time.sleep(0.06)  # what is tested is slowness
                yield batch

    with reader_of(Slow(25), teacher, teachers_max=8) as reader:
        list(reader)
        assert reader.stats.want == 1
        assert reader.stats.source_wait_s > 0.5
        # A machine that is busy makes labels late too, and the source later still.
        assert reader.stats.starved_s < reader.stats.source_wait_s / 2


@pytest.mark.serial
def test_nor_does_one_that_yields_in_bursts(teacher: ScriptedTeacher) -> None:
    class Bursts(Batches):
        def __iter__(self) -> Iterator[Any]:
            for number, batch in enumerate(super().__iter__()):
                waited_s = 0.05 * number  # told five times a second: then several at once
                until(lambda: reader.stats.source_wait_s >= waited_s)  # noqa: B023
                yield batch

    wants = set()
    with reader_of(Bursts(16), teacher, teachers_max=8) as reader:
        for _ in reader:
            wants.add(reader.stats.want)
    assert wants <= {0, 1}

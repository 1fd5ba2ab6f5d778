"""The engine dies at the worst moments: the next one knows all that the stream needs of it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import DistilReader
from edl.errors import NoTeacherAvailable
from edl.proto.arena import Array
from edl.proto.tensors import InferRequest
from edl.tests.distill_reader.test_reader import Batches, check_epoch, reader_of, until
from edl.tests.ground.programs import wait_gone
from edl.tests.scripted_teacher import ScriptedTeacher, label


@pytest.fixture
def teacher() -> Iterator[ScriptedTeacher]:
    teacher = ScriptedTeacher()
    yield teacher
    teacher.stop()


def test_with_nothing_in_the_ring_and_nothing_allowed(teacher: ScriptedTeacher) -> None:
    """The next engine sees no batch, and yet has to allow those behind the ones gone by."""
    source = Batches(50)
    with reader_of(source, teacher, upper_bytes=1, lower_bytes=0) as reader:
        iterator = iter(reader)
        batches = [next(iterator)]
        stream = reader._pipeline.stream
        until(lambda: stream.pulled == stream._limit and not stream_has_open_batches(reader))
        os.kill(reader.engine_pid, signal.SIGSTOP)
        while len(batches) < stream.pulled:
            batches.append(next(iterator))
        os.kill(reader.engine_pid, signal.SIGKILL)
        batches += iterator
        assert reader.stats.engine_restarts == 1
    check_epoch(source, batches)


def stream_has_open_batches(reader: DistilReader) -> bool:
    with reader._pipeline.stream.held() as held:
        return bool(held.unlabelled)


def test_while_the_loop_waits_for_a_teacher() -> None:
    with DistilReader(
        Batches(3), service="s", teachers=["127.0.0.1:9"], wait_timeout_s=2.0
    ) as reader:
        killer = threading.Thread(target=lambda: kill_once_it_waits(reader))
        killer.start()
        with pytest.raises(NoTeacherAvailable):
            list(reader)
        killer.join(10)
        until(lambda: reader.stats.engine_restarts == 1)


def kill_once_it_waits(reader: DistilReader) -> None:
    until(lambda: "0 of 1" in reader.stats.waiting_for)
    os.kill(reader.engine_pid, signal.SIGKILL)


def test_around_the_change_of_epochs(teacher: ScriptedTeacher) -> None:
    source = Batches(30)
    with reader_of(source, teacher) as reader:
        for taken in (0, 1, 30):  # three deaths: a fifth within a minute would be one too many
            iterator = iter(reader)
            for _ in range(taken):
                next(iterator)
            os.kill(reader.engine_pid, signal.SIGKILL)
            del iterator
            check_epoch(source, list(reader))
        assert reader.stats.engine_restarts == 3


def test_its_memory_goes_with_its_labels_and_not_before(teacher: ScriptedTeacher) -> None:
    source = Batches(400, shape=(64,))
    with reader_of(source, teacher, upper_bytes=100_000) as reader:
        iterator = iter(reader)
        batches: list[Any] = [next(iterator)]
        until(lambda: reader.stats.state == "blocked")
        before = memory_files()  # a mapping has a descriptor of its own
        for deaths in (1, 2):
            os.kill(reader.engine_pid, signal.SIGKILL)
            until(lambda: reader.stats.engine_restarts == deaths)  # noqa: B023
        batches += iterator
        check_epoch(source, batches)
        batches.clear()
        until(lambda: memory_files() <= before)


def memory_files() -> int:
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return sum("memfd:edl" in os.readlink(link) for link in links if os.path.islink(link))


def test_with_labels_behind_a_batch_that_has_none(teacher: ScriptedTeacher) -> None:
    source, go_on = Batches(20), threading.Event()
    first = source.at(0)

    def keeps_the_first(request: InferRequest) -> dict[str, Array]:
        if np.array_equal(request.inputs["x"], first):
            go_on.wait(20)
        return label(request)

    teacher.behaviour = keeps_the_first
    with reader_of(source, teacher, ordered=False) as reader:
        iterator = iter(reader)
        batches = [next(iterator)]
        until(lambda: has_labels_behind_none(reader))
        os.kill(reader.engine_pid, signal.SIGKILL)
        until(lambda: reader.stats.engine_restarts == 1)
        go_on.set()
        batches += iterator
        assert reader.stats.engine_restarts == 1
    check_epoch(source, sorted(batches, key=lambda batch: int(batch[1][0])))


def has_labels_behind_none(reader: DistilReader) -> bool:
    with reader._pipeline.stream.held() as held:
        pairs = zip(held.labelled[-1:], held.unlabelled[:1], strict=False)
        return any(labelled.number > unlabelled.number for labelled, unlabelled in pairs)


def test_closing_at_its_death_starts_no_other(teacher: ScriptedTeacher) -> None:
    for _ in range(5):
        reader = reader_of(Batches(100), teacher)
        client = reader._pipeline.engine
        next(iter(reader))
        with client._lock:  # the receiver has seen the death, and waits to start another
            os.kill(client.pid, signal.SIGKILL)
            until(lambda: len(client._deaths) == 1)  # noqa: B023
            client._closing = True
        reader.close()
        wait_gone([client.pid])
        assert client.restarts == 0

"""Epochs and readers that are left, closed, collected, interrupted, forked or copied."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import Callback, DistilReader
from edl.distill_reader.pipeline import TaskThread
from edl.distill_reader.puller import Puller
from edl.distill_reader.stats import Callbacks
from edl.proto.channel import Channel
from edl.runtime.errors import UsageError
from edl.runtime.supervise import Process
from edl.tests.distill_reader.readers import (
    NOBODY,
    Batches,
    all_options,
    check_epoch,
    numbers_of,
    pipeline_of,
    reader_of,
)
from edl.tests.leaks import open_files
from edl.tests.runtime.programs import wait_gone
from edl.tests.scripted_teacher import ScriptedTeacher
from edl.tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.system

# --- epochs


def test_leaving_does_not_wait_for_the_source(teacher: ScriptedTeacher) -> None:
    go_on = threading.Event()

    class Slow(Batches):
        def __iter__(self) -> Iterator[Any]:
            yield from super().__iter__()
            go_on.wait()

    source = Slow(4)
    with reader_of(source, teacher) as reader:
        iterator = iter(reader)
        batches = [next(iterator) for _ in range(3)]
        del iterator
        wait_until(lambda: reader.stats.ready == 0)  # the last one is dropped with the epoch
        go_on.set()
        check_epoch(source, list(reader))
    assert numbers_of(batches) == [0, 1, 2]


def test_a_stop_iteration_of_a_conversion_does_not_end_the_epoch(teacher: ScriptedTeacher) -> None:
    source, noise = Batches(4), iter([1, 2])

    def with_noise(batch: Any) -> Any:
        next(noise)
        return batch

    with reader_of(source, teacher) as reader:
        epoch = reader.iterate(with_noise)
        batches = [next(epoch), next(epoch)]
        with pytest.raises(UsageError, match="raised StopIteration"):
            next(epoch)
        noise = iter([3, 4])
        check_epoch(source, [*batches, *epoch])


def test_an_epoch_that_was_cut_short_does_not_seem_to_end(teacher: ScriptedTeacher) -> None:
    """As where somebody peeks at a batch from within the loop, or nests two loops."""
    source = Batches(20)
    with reader_of(source, teacher) as reader:
        ended = iter(reader)
        whole = list(ended)
        outer = iter(reader)
        next(outer)
        next(iter(reader))
        with pytest.raises(UsageError, match=r"another epoch of the same reader.*two readers"):
            next(outer)
        with pytest.raises(UsageError, match="left unfinished"):
            list(zip(reader, reader, strict=True))
        loaded = iter(reader)
        next(loaded)
        reader.load_state_dict(reader.state_dict())
        with pytest.raises(UsageError, match="left unfinished"):
            next(loaded)
        assert list(ended) == [], "all of its batches were taken"
        closed = iter(reader)
        next(closed)
        closed.close()
        check_epoch(source, list(reader))
        assert list(closed) == [], "it was left on purpose"
    check_epoch(source, whole)


def test_several_threads_share_an_epoch(teacher: ScriptedTeacher) -> None:
    source = Batches(200)
    seen: list[Any] = []
    with reader_of(source, teacher) as reader, ThreadPoolExecutor(4) as threads:
        iterator = iter(reader)
        for thread in [threads.submit(lambda: seen.extend(iterator)) for _ in range(4)]:
            thread.result(DEADLINE_S)
        assert reader.stats.delivered == 200
    seen.sort(key=lambda batch: int(batch[1][0]))
    check_epoch(source, seen)


def test_time_spent_waiting_for_the_source_is_counted(teacher: ScriptedTeacher) -> None:
    class Waits(Batches):
        def __iter__(self) -> Iterator[Any]:
            for number, batch in enumerate(super().__iter__()):
                wait_until(lambda: reader.stats.source_wait_s >= 0.05 * number)  # noqa: B023
                yield batch

    source = Waits(8)
    with reader_of(source, teacher) as reader:
        check_epoch(source, list(reader))


def test_a_source_is_closed_though_it_yielded_nonsense(teacher: ScriptedTeacher) -> None:
    closed = threading.Event()

    class Nonsense:
        def __iter__(self) -> Iterator[Any]:
            try:
                yield "no arrays"
            finally:
                closed.set()

    with reader_of(Nonsense(), teacher) as reader:
        with pytest.raises(UsageError) as kept:  # and with it each frame that has the iterator
            list(reader)
        assert closed.wait(DEADLINE_S)
        del kept


class Forgetful:
    """Yields arrays that it keeps no reference to."""

    def __init__(self) -> None:
        self.yielded: list[weakref.ref[Any]] = []

    def __iter__(self) -> Forgetful:
        return self

    def __next__(self) -> Any:
        array = np.ones((4, 64), np.float32)
        self.yielded.append(weakref.ref(array))
        return (array,)


def test_an_epoch_that_begins_while_the_reader_is_closed_leaves_no_iterator_open(
    teacher: ScriptedTeacher,
) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    class OpenIterator:
        def __next__(self) -> Any:
            raise StopIteration

        def close(self) -> None:
            ended.set()

    class Source:
        def __iter__(self) -> Any:
            begun.set()
            assert go_on.wait(DEADLINE_S)
            return OpenIterator()

    reader = reader_of(Source(), teacher)
    with ThreadPoolExecutor(1) as threads:
        loop = threads.submit(list, reader)
        assert begun.wait(DEADLINE_S)
        reader.close()
        go_on.set()
        with pytest.raises(UsageError, match="closed"):
            loop.result(DEADLINE_S)
    assert ended.is_set()


def test_yielded_arrays_are_released_while_the_buffer_is_full(teacher: ScriptedTeacher) -> None:
    source = Forgetful()
    with DistilReader.from_batch_generator(
        lambda: source, service="s", teachers=[teacher.address], upper_bytes=4000
    ) as reader:
        epoch = iter(reader)  # without a reference to it the epoch would be left
        next(epoch)
        yielded = source.yielded
        wait_until(lambda: len(yielded) > 2 and all(one() is None for one in yielded))


# --- the garbage collector


def delegating(reader: DistilReader) -> Iterator[Any]:
    """Closes the iterator that it delegates to when it is collected."""
    yield from reader


@pytest.mark.parametrize("begun", [iter, delegating])
@pytest.mark.parametrize("holder", ["stream", "engine"])
def test_a_finalizer_may_run_while_a_lock_is_held(
    begun: Callable[[DistilReader], Iterator[Any]], holder: str, teacher: ScriptedTeacher
) -> None:
    """The garbage collector runs it in any thread."""
    reader = reader_of(Batches(1000), teacher)
    pipeline, pid = pipeline_of(reader), reader.engine_pid  # it outlives the reader

    class Collects:
        """A batch whose record is looked at under the engine's lock."""

        @property
        def record(self) -> int:
            gc.collect()
            raise LookupError  # so that the engine is not told of it

    def collect() -> None:
        if holder == "stream":
            with pipeline.stream.snapshot():
                gc.collect()
        else:
            with suppress(LookupError):
                pipeline.engine.announce(Collects(), pipeline.stream.epoch)  # type: ignore[arg-type]

    gc.collect()
    gc.disable()
    try:
        iterator = begun(reader)
        next(iterator)
        cycle: list[Any] = [iterator, reader]
        cycle.append(cycle)
        del iterator, reader, cycle
        collector = threading.Thread(target=collect, daemon=True)
        collector.start()
        collector.join(DEADLINE_S)
    finally:
        gc.enable()
    assert not collector.is_alive(), "it waits for the lock that it holds itself"
    wait_gone([pid])


# --- everything is given back


@pytest.fixture(scope="module")
def shared_teacher() -> Iterator[ScriptedTeacher]:
    """Its threads and sockets stay, while those of readers are counted."""
    teacher = ScriptedTeacher()
    teacher.parameters = {"content_id": "model-1"}
    with reader_of(Batches(2), teacher) as reader:  # what stays for good: the pipe of lives
        list(reader)
    yield teacher
    teacher.stop()


def fails_in_the_loop(reader: DistilReader) -> None:
    def train() -> None:
        with reader:
            for x, *_ in reader:
                raise ZeroDivisionError(x)

    with pytest.raises(ZeroDivisionError):
        train()


def is_dropped_in_a_cycle(reader: DistilReader) -> None:
    iterator = delegating(reader)
    next(iterator)
    cycle: list[Any] = [iterator]
    cycle.append(cycle)


@pytest.mark.parametrize("end", [fails_in_the_loop, is_dropped_in_a_cycle, DistilReader.close])
def test_descriptors_and_engine_go_with_the_reader(
    end: Callable[[DistilReader], None], shared_teacher: ScriptedTeacher, tmp_path: Path
) -> None:
    before = open_files().keys()
    reader = reader_of(Batches(200), **all_options(shared_teacher.address, tmp_path))
    pid = reader.engine_pid
    end(reader)
    del reader
    wait_until(lambda: open_files().keys() <= before)
    wait_gone([pid])


# --- Ctrl-C at the worst moments


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("where", "method"),
    [
        (threading.Thread, "start"),
        (Puller, "__init__"),
        (TaskThread, "__init__"),
        (Callbacks, "start"),
        (Process, "__init__"),
    ],
)
def test_ctrl_c_in_init(
    where: type, method: str, shared_teacher: ScriptedTeacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_files().keys()
    with monkeypatch.context() as patch:
        patch.setattr(where, method, interrupt)
        with pytest.raises(KeyboardInterrupt):
            reader_of(Batches(3), shared_teacher)
    wait_until(lambda: open_files().keys() <= before)


@pytest.mark.parametrize("method", ["send", "close"])
def test_a_close_that_ctrl_c_has_ended_is_done_again(
    method: str, shared_teacher: ScriptedTeacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_files().keys()
    reader = reader_of(Batches(100), shared_teacher)
    epoch = iter(reader)  # without a reference it would be left, by the channel that is patched
    next(epoch)
    pid = reader.engine_pid
    with monkeypatch.context() as patch:
        patch.setattr(Channel, method, interrupt)
        with pytest.raises(KeyboardInterrupt):
            reader.close()
    reader.close()
    wait_gone([pid])
    del epoch, reader
    wait_until(lambda: open_files().keys() <= before)


def test_ctrl_c_while_it_waits_for_a_teacher_and_again() -> None:
    def interrupt_once_it_waits() -> None:
        wait_until(lambda: NOBODY in reader.stats.waiting_for)
        os.kill(os.getpid(), signal.SIGINT)

    def read_until_interrupted() -> None:
        interrupter.start()
        list(reader)

    with reader_of(Batches(3), NOBODY) as reader:
        for _ in range(2):
            interrupter = threading.Thread(target=interrupt_once_it_waits)
            with pytest.raises(KeyboardInterrupt):
                read_until_interrupted()
            interrupter.join()


def test_ctrl_c_anywhere_while_a_batch_is_taken_costs_no_batch(teacher: ScriptedTeacher) -> None:
    """Python looks for signals where a function begins, and behind each call of one in C.

    A callback is called meanwhile, which could end the program as well.
    """
    left = 0

    def interrupt_later(_: Any, event: str, __: Any) -> None:
        nonlocal left
        if event in ("call", "c_return"):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    batches: list[Any] = []
    interrupted = 0
    with reader_of(Batches(200), teacher, callbacks=[Callback()]) as reader:
        iterator = iter(reader)
        while left <= 0:  # the latest batch was interrupted
            wait_until(lambda: reader.stats.ready > 8)  # waits are not what this is about
            interrupted += 1
            left = interrupted
            gc.disable()  # an exception in what a collection calls would be ignored
            try:
                sys.setprofile(interrupt_later)
                for batch in iterator:
                    sys.setprofile(None)
                    batches.append(batch)
                    break
            except KeyboardInterrupt:
                assert reader.state_dict()["batches"] == len(batches)
            finally:
                sys.setprofile(None)
                gc.enable()
        assert interrupted > 20
        batches += iterator
        assert numbers_of(batches) == list(range(200))
        assert reader.stats.delivered == 200
        batches.clear()
        del batch
        wait_until(lambda: reader.stats.volume_bytes == 0)
        check_epoch(Batches(200), list(reader))


def test_a_reader_is_not_copied() -> None:
    with reader_of(Batches(1), NOBODY) as reader:
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(
                UsageError, match=r"neither copied nor pickled.*one in each process"
            ):
                copied(reader)

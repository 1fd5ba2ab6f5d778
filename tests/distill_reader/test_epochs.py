"""Epochs that are left, finalizers that run anywhere, and what a reader gives back."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import pickle
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import DistilReader
from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.pipeline import Pipeline
from edl.distill_reader.sources import source_of
from edl.errors import EngineLost, UsageError
from edl.scheduler.shard_plan import Shard
from edl.tests.distill_reader.test_reader import Batches, check_epoch, reader_of, until
from edl.tests.ground.programs import wait_gone
from edl.tests.scripted_teacher import ScriptedTeacher


@pytest.fixture
def teacher() -> Iterator[ScriptedTeacher]:
    teacher = ScriptedTeacher()
    yield teacher
    teacher.stop()


def test_leaving_does_not_wait_for_the_source(teacher: ScriptedTeacher) -> None:
    go_on = threading.Event()

    class Slow(Batches):
        def __iter__(self) -> Iterator[Any]:
            yield from super().__iter__()
            go_on.wait(20)

    source = Slow(3)
    with reader_of(source, teacher) as reader:
        iterator = iter(reader)
        batches = [next(iterator) for _ in range(3)]
        started = time.monotonic()
        del iterator
        assert time.monotonic() - started < 1.0
        until(lambda: reader._pipeline.stream.epoch == 2)  # it is left, nevertheless
        go_on.set()
        check_epoch(source, list(reader))
    check_epoch(source, batches)


def test_many_epochs_left_at_any_moment_and_one_that_is_not(teacher: ScriptedTeacher) -> None:
    source = Batches(20)
    with reader_of(source, teacher, upper_bytes=1000) as reader:
        for taken in range(40):
            for _ in itertools.islice(reader, taken % 4):
                pass
        check_epoch(source, list(reader))
        gc.collect()
        until(lambda: reader.stats.volume_bytes == 0)


def delegating(reader: DistilReader) -> Iterator[Any]:
    """What is closed when it is collected, and with it what it delegates to."""
    yield from reader


@pytest.mark.parametrize("begun", [iter, delegating])
def test_a_finalizer_may_run_inside_any_call_of_ours(
    begun: Callable[[DistilReader], Iterator[Any]], teacher: ScriptedTeacher
) -> None:
    """The garbage collector runs it in whatever thread, with whatever lock held there."""

    def drop(reader: DistilReader) -> None:
        iterator = begun(reader)
        next(iterator)
        cycle: list[Any] = [iterator, reader]
        cycle.append(cycle)

    for lock in ("_changed", "_epochs", "_lock"):
        reader = reader_of(Batches(1000), teacher)
        pipeline, pid = reader._pipeline, reader.engine_pid
        holder = {
            "_changed": pipeline.stream._changed,
            "_epochs": pipeline._epochs,
            "_lock": pipeline.engine._lock,
        }[lock]
        gc.collect()
        gc.disable()
        try:
            drop(reader)
            del reader
            collector = threading.Thread(target=collect_within, args=(holder,), daemon=True)
            collector.start()
            collector.join(5)
        finally:
            gc.enable()
        assert not collector.is_alive(), f"it waits for {lock}, which it holds itself"
        wait_gone([pid])


def collect_within(lock: Any) -> None:
    with lock:
        gc.collect()


def test_a_reader_is_collected_though_it_has_raised(teacher: ScriptedTeacher) -> None:
    class Broken(Batches):
        def __iter__(self) -> Iterator[Any]:
            yield from super().__iter__()
            raise KeyError("the source's own")

    reader = reader_of(Broken(2), teacher)
    pid = reader.engine_pid
    with pytest.raises(KeyError):
        list(reader)
    del reader
    gc.collect()
    wait_gone([pid])


def test_a_closed_reader_says_so(teacher: ScriptedTeacher) -> None:
    reader = reader_of(Batches(100), teacher)
    iterator = iter(reader)
    next(iterator)
    reader.close()
    reader.close()
    with pytest.raises(UsageError, match="closed"):
        list(iterator)
    with pytest.raises(UsageError, match="closed"):
        iter(reader)


def test_readers_leave_no_descriptors_behind(teacher: ScriptedTeacher) -> None:
    def use_one() -> None:
        with reader_of(Batches(3), teacher) as reader:
            list(reader)

    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    use_one()
    until(lambda: teacher_is_alone(teacher))
    before = descriptors()
    for _ in range(4):
        use_one()
    until(lambda: descriptors() <= before)


def teacher_is_alone(teacher: ScriptedTeacher) -> bool:
    return not any(t.name.startswith("edl-reader") for t in threading.enumerate())


def test_a_source_is_closed_though_it_yielded_nonsense(teacher: ScriptedTeacher) -> None:
    closed = threading.Event()

    class Nonsense:
        def __iter__(self) -> Iterator[Any]:
            try:
                yield "no arrays"
            finally:
                closed.set()

    with reader_of(Nonsense(), teacher) as reader:
        kept: BaseException | None = None
        try:
            list(reader)
        except UsageError as error:
            kept = error  # and with it every frame that refers to the iterator
        assert kept is not None
        assert closed.wait(5)


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


def test_what_the_source_has_yielded_is_let_go_while_the_buffer_is_full(
    teacher: ScriptedTeacher,
) -> None:
    batches = Forgetful()
    with DistilReader.from_batch_generator(
        lambda: batches, service="s", teachers=[teacher.address], upper_bytes=4000
    ) as reader:
        epoch = iter(reader)  # it would be left, and no more pulled, if nobody held it
        next(epoch)
        until(lambda: len(batches.yielded) > 2 and all(one() is None for one in batches.yielded))


def test_several_threads_share_an_epoch(teacher: ScriptedTeacher) -> None:
    source = Batches(200)
    seen: list[Any] = []
    with reader_of(source, teacher) as reader:
        iterator = iter(reader)
        threads = [threading.Thread(target=lambda: seen.extend(iterator)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert reader.stats.delivered == 200
    seen.sort(key=lambda batch: int(batch[1][0]))
    check_epoch(source, seen)


def test_a_forked_copy_says_that_it_is_one_and_ends_nothing(teacher: ScriptedTeacher) -> None:
    # No teacher is asked: gRPC's servers in this process do not survive a fork.
    teacher.stop()
    reader = DistilReader(Batches(3), service="s", teachers=["127.0.0.1:9"])
    iterator = iter(reader)
    pid = os.fork()
    if pid == 0:
        os._exit(say_it_is_a_copy(reader, iterator))
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        os.kill(reader.engine_pid, 0)
    finally:
        reader.close()


def say_it_is_a_copy(reader: DistilReader, iterator: Iterator[Any]) -> int:
    try:
        for use in (lambda: iter(reader), lambda: next(iterator)):
            with pytest.raises(UsageError, match="another process"):
                use()
        reader.close()
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def test_an_epoch_that_another_one_has_cut_short_does_not_seem_to_end(
    teacher: ScriptedTeacher,
) -> None:
    """As where somebody peeks at a batch from within the loop, or nests two loops."""
    source = Batches(20)
    with reader_of(source, teacher) as reader:
        ended = iter(reader)
        whole = list(ended)
        outer = iter(reader)
        next(outer)
        next(iter(reader))
        with pytest.raises(UsageError, match=r"another one of the same reader.*two readers"):
            next(outer)
        with pytest.raises(UsageError, match="left unfinished"):
            list(zip(reader, reader, strict=True))
        assert list(ended) == [], "which has had all of its batches"
        closed = iter(reader)
        next(closed)
        closed.close()
        check_epoch(source, list(reader))
        assert list(closed) == [], "which was left on purpose"
    check_epoch(source, whole)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_reader_is_not_copied(teacher: ScriptedTeacher, copied: Any) -> None:
    with (
        reader_of(Batches(1), teacher) as reader,
        pytest.raises(UsageError, match=r"neither copied nor pickled.*one in each process"),
    ):
        copied(reader)


def test_whatever_befalls_the_receiver_is_raised_and_not_waited_for(
    teacher: ScriptedTeacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(Batches(3), Shard(), 0)
    pipeline = Pipeline(ReaderConfig("s", teachers=(teacher.address,)), source)
    try:

        def fail(*_: object) -> None:
            raise RuntimeError("a defect of ours")

        monkeypatch.setattr(pipeline.stream, "settle", fail)
        with pytest.raises(EngineLost, match="a defect of ours"):
            pipeline.next(pipeline.begin(), None)
    finally:
        pipeline.close()

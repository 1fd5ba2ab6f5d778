"""The engine of a pool: it may die or hang, and a reader may share it."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import LabelStore, Limits, TeacherPool
from edl.distill_reader import calls as pool_calls
from edl.proto.arena import Array
from edl.proto.tensors import InferRequest
from edl.runtime.errors import LabelTimeout, UsageError
from edl.tests.distill_reader.conftest import StartTeacher
from edl.tests.distill_reader.readers import (
    Batches,
    Gate,
    check_epoch,
    check_labels,
    pipeline_of,
    pool_of,
    reader_of,
    x_of,
)
from edl.tests.scripted_teacher import ScriptedTeacher, label
from edl.tests.waiting import DEADLINE_S, wait_until

LONG_S = DEADLINE_S


def test_the_death_of_the_engine_loses_and_repeats_no_answer(start_teacher: StartTeacher) -> None:
    gate = Gate()
    with pool_of(start_teacher(gate)) as pool:
        futures = [pool.submit(x_of(number)) for number in range(20)]
        wait_until(lambda: gate.asked > 0)
        os.kill(pipeline_of(pool).engine.pid, signal.SIGKILL)
        gate.open.set()
        for number, future in enumerate(futures):
            check_labels(number, future.result(LONG_S))
        assert pool.stats.engine_restarts == 1
        assert (pool.stats.calls, pool.stats.calls_failed) == (20, 0)


def test_deadlines_hold_while_the_engine_hangs(teacher: ScriptedTeacher) -> None:
    """However many calls there are: nobody waits for the engine to read about them."""
    pool = pool_of(teacher)
    check_labels(0, pool.label(x_of(0)))
    engine = pipeline_of(pool).engine.pid
    os.kill(engine, signal.SIGSTOP)
    try:
        futures = []
        for number in range(3000):
            begun = time.monotonic()
            with contextlib.suppress(LabelTimeout):  # there was no room in time, as after a stall
                futures.append(pool.submit(x_of(number), 1.0))
            assert time.monotonic() - begun < LONG_S
        assert len(futures) > pool_calls.MAX_CALLS, "calls that are late make room"
        assert wait(futures, LONG_S).not_done == set()
        assert all(isinstance(one.exception(), LabelTimeout) for one in futures)
        waiting = pool.submit(x_of(0))
        os.kill(engine, signal.SIGCONT)
        check_labels(0, waiting.result(LONG_S))
        os.kill(engine, signal.SIGSTOP)
        pool.close()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(engine, signal.SIGCONT)


def test_a_new_content_begins_an_epoch_for_what_waits(start_teacher: StartTeacher) -> None:
    gate = Gate()
    with pool_of(start_teacher(gate)) as pool:
        waiting = [pool.submit(x_of(number)) for number in range(5)]
        wait_until(lambda: gate.asked > 0)
        pipeline = pipeline_of(pool)
        assert pipeline.engine.on_epoch_due is not None
        pipeline.engine.on_epoch_due()
        wait_until(lambda: pipeline.stream.data_epoch == 1)
        gate.open.set()
        for number, future in enumerate(waiting):
            check_labels(number, future.result(LONG_S))


# --- one engine for a reader and a pool


def test_a_reader_and_its_pool_share_engine_and_teachers(teacher: ScriptedTeacher) -> None:
    source = Batches(200)
    with reader_of(source, teacher) as reader, TeacherPool.of(reader) as pool:
        stop = threading.Event()

        def call() -> int:
            for number in itertools.count():
                if stop.is_set():
                    return number
                check_labels(number, pool.label(x_of(number)))
            return 0

        with ThreadPoolExecutor(2) as threads:
            counts = [threads.submit(call) for _ in range(2)]
            for _ in range(3):  # each epoch forgets the batches of the one before
                check_epoch(source, list(reader))
            next(iter(reader))
            stop.set()
        assert reader.stats.calls == sum(count.result() for count in counts) > 0
        assert reader.stats.calls_failed == 0
        assert reader.stats.delivered == 601
        pool.close()
        with pytest.raises(UsageError, match="closed"):
            pool.label(x_of(1))
        check_epoch(source, list(reader))


def test_calls_in_a_training_step_do_not_wait_for_the_loop(teacher: ScriptedTeacher) -> None:
    """The buffer is full, and pulling has paused."""
    source = Batches(40)
    with (
        reader_of(source, teacher, upper_bytes=1, lower_bytes=0) as reader,
        TeacherPool.of(reader, timeout_s=LONG_S) as pool,
    ):
        batches: list[Any] = []
        for batch in reader:
            wait_until(lambda: reader.stats.state == "blocked" or reader.stats.ready == 0)
            check_labels(len(batches), pool.label(x_of(len(batches))))
            batches.append(batch)
        check_epoch(source, batches)


def test_callers_do_not_keep_the_loop_from_pulling(teacher: ScriptedTeacher) -> None:
    """More of them than there is room at teachers."""

    def answer_slowly(request: InferRequest) -> dict[str, Array]:
        time.sleep(0.002)
        return label(request)

    teacher.behaviour = answer_slowly
    source, stop = Batches(20), threading.Event()
    limits = Limits(window=1, window_max=1)
    with (
        reader_of(source, teacher, limits=limits) as reader,
        TeacherPool.of(reader) as pool,
        ThreadPoolExecutor(16) as threads,
    ):

        def call() -> None:
            while not stop.is_set():
                pool.label(x_of(1))

        callers = [threads.submit(call) for _ in range(16)]
        wait_until(lambda: reader.stats.calls > 16)
        try:
            check_epoch(source, list(reader))
        finally:
            stop.set()
        for caller in callers:
            caller.result(LONG_S)


def test_a_call_without_ids_for_the_store_does_not_end_the_epoch(
    teacher: ScriptedTeacher, tmp_path: Path
) -> None:
    teacher.parameters = {"content_id": "model-1"}
    source = Batches(50)
    store = LabelStore(tmp_path / "labels.edl", 1 << 20, sample_ids=[1])
    with reader_of(source, teacher, store=store) as reader, TeacherPool.of(reader) as pool:
        iterator = iter(reader)
        batches = [next(iterator)]
        with pytest.raises(UsageError, match="sample_ids of the store names field 1"):
            pool.label(x_of(1), LONG_S)
        check_labels(2, pool.label((x_of(2), 1000 + np.arange(2)), LONG_S))
        check_epoch(source, batches + list(iterator))


def test_calls_go_on_after_batches_of_the_loop_that_do_not_fit(teacher: ScriptedTeacher) -> None:
    """Although the loop keeps the epoch that has failed."""
    source = [{"image": x_of(number)} for number in range(5)]
    options: dict[str, Any] = {"feeds": {"x": "pixels"}, "limits": Limits(window=1, window_max=1)}
    with reader_of(source, teacher, **options) as reader, TeacherPool.of(reader) as pool:
        iterator = iter(reader)
        for number in range(3):
            with pytest.raises(UsageError, match="feeds names field 'pixels'"):
                next(iterator)
            check_labels(number, pool.label({"pixels": x_of(number)}, LONG_S))


def test_an_epoch_that_begins_repeats_what_waits(start_teacher: StartTeacher) -> None:
    gate = Gate()
    source = Batches(3)
    with reader_of(source, start_teacher(gate)) as reader, TeacherPool.of(reader) as pool:
        futures = [pool.submit(x_of(number)) for number in range(10)]
        iterators = [iter(reader), iter(reader)]
        gate.open.set()
        check_epoch(source, list(iterators[1]))
        for number, future in enumerate(futures):
            check_labels(number, future.result(LONG_S))


def test_a_closed_reader_ends_the_calls_of_its_pool(start_teacher: StartTeacher) -> None:
    gate = Gate()
    reader = reader_of(Batches(3), start_teacher(gate))
    waiting: Future[Any] = TeacherPool.of(reader).submit(x_of(1))
    reader.close()
    gate.open.set()
    assert wait([waiting], LONG_S).done
    assert isinstance(waiting.exception(), UsageError)

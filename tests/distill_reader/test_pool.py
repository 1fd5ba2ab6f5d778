"""Each call of a pool has exactly one answer: its own labels, or an error by its deadline."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import pickle
import re
import socket
import threading
import time
import weakref
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import DistilReader, LabelStore, Limits, TeacherPool
from edl.distill_reader import calls as pool_calls
from edl.proto.arena import Array
from edl.proto.tensors import InferRequest
from edl.runtime.errors import BatchError, LabelTimeout, PoisonBatch, RequestRefused, UsageError
from edl.tests.distill_reader.conftest import StartTeacher
from edl.tests.distill_reader.readers import (
    NOBODY,
    Gate,
    check_labels,
    fail,
    kept_port,
    pipeline_of,
    pool_of,
    reader_of,
    x_of,
)
from edl.tests.scripted_teacher import CLASSES, ScriptedTeacher, label
from edl.tests.waiting import DEADLINE_S, wait_until

LONG_S = DEADLINE_S
#: Of calls that no teacher answers.
SHORT_S = 0.3


# --- answers


def test_labels_are_those_of_the_batch_by_name_of_the_output(teacher: ScriptedTeacher) -> None:
    with pool_of(teacher) as pool:
        for batch in (x_of(1), (x_of(1), np.arange(2)), {"x": x_of(1), "id": np.arange(2)}):
            check_labels(1, pool.label(batch))
        check_labels(7, pool.submit(x_of(7, 5)).result(LONG_S), rows=5)
        assert (pool.stats.calls, pool.stats.calls_failed) == (4, 0)
        assert len(pool.stats.teachers) == 1


def test_tensors_give_tensors(teacher: ScriptedTeacher) -> None:
    torch = pytest.importorskip("torch")
    with pool_of(teacher) as pool:
        labels = pool.label(torch.from_numpy(x_of(3)))
    assert isinstance(labels["logits"], torch.Tensor)
    check_labels(3, {"logits": labels["logits"].numpy()})


def test_labels_stay_valid_after_the_pool(teacher: ScriptedTeacher) -> None:
    with pool_of(teacher) as pool:
        kept = [pool.label(x_of(number)) for number in range(50)]
    for number, labels in enumerate(kept):
        check_labels(number, labels)


def test_threads_get_their_own_labels_whatever_happens_to_teachers(
    teacher: ScriptedTeacher, second: ScriptedTeacher, start_teacher: StartTeacher
) -> None:
    dies = start_teacher()
    failing = itertools.cycle([label, label, fail])
    second.behaviour = lambda request: next(failing)(request)
    with pool_of(teacher, second, dies) as pool, ThreadPoolExecutor(8) as threads:

        def call(number: int) -> None:
            if number == 200:
                dies.stop()
            check_labels(number, pool.label(x_of(number)))

        list(threads.map(call, range(600)))
        assert pool.stats.calls == 600


def test_an_event_loop_is_not_blocked(teacher: ScriptedTeacher) -> None:
    async def both(pool: TeacherPool) -> None:
        labels = await asyncio.gather(*(pool.label_async(x_of(n)) for n in range(20)))
        for number, one in enumerate(labels):
            check_labels(number, one)
        check_labels(5, await (await pool.submit_async(x_of(5))))

    with pool_of(teacher) as pool:
        asyncio.run(both(pool))


def test_labels_of_several_services_are_averaged(
    teacher: ScriptedTeacher, second: ScriptedTeacher
) -> None:
    addresses = {"a": [teacher.address], "b": [second.address]}
    with TeacherPool(service={"a": 0.5, "b": 0.5}, teachers=addresses) as pool:
        labels = pool.label(x_of(0), LONG_S)["logits"]
    np.testing.assert_allclose(labels.sum(axis=1), 1.0, rtol=1e-6)
    assert teacher.requests
    assert second.requests


def test_stored_labels_are_not_asked_for_again(teacher: ScriptedTeacher, tmp_path: Path) -> None:
    teacher.parameters = {"content_id": "model-1"}

    def asked() -> int:
        before = teacher.requests
        with pool_of(teacher, store=LabelStore(tmp_path / "labels.edl", 1 << 20)) as pool:
            for number in range(5):
                batch = {"x": x_of(number), "id": 2 * number + np.arange(2)}
                check_labels(number, pool.label(batch))
        return teacher.requests - before

    assert asked() >= 5
    assert asked() <= 1, "the first answer says which model it is"


def test_memory_is_free_without_a_garbage_collection(teacher: ScriptedTeacher) -> None:
    """Also if the caller keeps the future, and after errors."""
    with pool_of(teacher) as pool:
        big = np.ones((1000, 100), np.float32)
        gc.collect()
        gc.disable()
        try:
            kept = [pool.submit(big)]
            kept[0].result(LONG_S)
            ring = pipeline_of(pool).ring
            before = ring.arena.size_bytes
            for _ in range(30):
                kept.append(pool.submit(big))
                kept[-1].result(LONG_S)
            assert ring.arena.size_bytes <= before + 2 * big.nbytes
            error: weakref.ref[Exception] | None = None
            teacher.behaviour = fail
            try:
                pool.label(big, SHORT_S)
            except LabelTimeout as raised:
                error = weakref.ref(raised)
            assert error is not None
            wait_until(lambda: error() is None)  # the thread of deadlines has it for a moment
        finally:
            gc.enable()


# --- callbacks


def test_a_callback_may_submit_but_not_wait(
    start_teacher: StartTeacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_calls, "MAX_CALLS", 2)
    gate, answers = Gate(), Future[Any]()
    with pool_of(start_teacher(gate)) as pool:

        def call(_: Future[Any]) -> None:
            more.append(pool.submit(x_of(2)))
            more.append(pool.submit(x_of(3)))  # there is no room for it
            try:
                pool.label(x_of(4))
            except UsageError as error:
                answers.set_result(error)

        more: list[Future[Any]] = []
        first, other = pool.submit(x_of(0)), pool.submit(x_of(1))
        first.add_done_callback(call)
        gate.open.set()
        assert "callback" in str(answers.result(LONG_S))
        for number, future in enumerate((first, other, *more)):
            check_labels(number, future.result(LONG_S))


def test_a_callback_may_close_the_pool(teacher: ScriptedTeacher) -> None:
    pool = pool_of(teacher)
    closed = threading.Event()

    def close(_: Future[Any]) -> None:
        pool.close()
        closed.set()

    pool.submit(x_of(0)).add_done_callback(close)
    assert closed.wait(LONG_S)
    with pytest.raises(UsageError, match="closed"):
        pool.label(x_of(1))


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(1), KeyboardInterrupt()])
def test_an_error_of_a_callback_ends_no_thread(
    start_teacher: StartTeacher, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    def call(_: Future[Any]) -> None:
        raise error

    gate = Gate()
    with pool_of(start_teacher(gate)) as pool:
        future = pool.submit(x_of(0))
        future.add_done_callback(call)
        gate.open.set()
        check_labels(0, future.result(LONG_S))
        check_labels(1, pool.label(x_of(1)))
    assert f"a callback of a future raised {type(error).__name__}" in caplog.text


# --- errors


def test_no_labels_before_the_deadline(start_teacher: StartTeacher) -> None:
    gate = Gate()
    with pool_of(start_teacher(gate)) as pool:
        first = pool.submit(x_of(0))
        wait_until(lambda: gate.asked > 0 and pool.stats.in_flight != ())
        begun = time.monotonic()
        late = pool.submit(x_of(1), SHORT_S)
        with pytest.raises(LabelTimeout, match=r"no labels within 0\.3 s: .*teachers at work: 1"):
            late.result(LONG_S)
        assert time.monotonic() - begun >= SHORT_S
        gate.open.set()
        check_labels(0, first.result(LONG_S))
        check_labels(2, pool.label(x_of(2)))
        assert (pool.stats.calls, pool.stats.calls_failed) == (2, 1)


@pytest.mark.parametrize("timeout_s", [LONG_S, 1e300])
def test_deadlines_of_calls_are_their_own(start_teacher: StartTeacher, timeout_s: float) -> None:
    """Also beside a call that may take centuries."""
    gate = Gate()
    with pool_of(start_teacher(gate), timeout_s=timeout_s) as pool:
        patient = pool.submit(x_of(1))
        hasty = pool.submit(x_of(2), SHORT_S).exception(LONG_S)
        assert isinstance(hasty, LabelTimeout)
        assert isinstance(hasty, TimeoutError)
        assert not patient.done()
        gate.open.set()
        check_labels(1, patient.result(LONG_S))


def test_without_a_teacher_the_error_says_so() -> None:
    def error() -> str:
        with pytest.raises(LabelTimeout) as raised:
            pool.label(x_of(1), SHORT_S)
        return str(raised.value)

    with pool_of(NOBODY) as pool:  # the engine reports the reason some time after its start
        wait_until(lambda: re.search("0 of 1 teachers live|unreachable", error()))


def have_ended(reader: DistilReader, calls: range) -> bool:
    """Whether the engine has heard so; the callers may know it earlier."""
    return all(any("CallEnded(" in line for line in reader.story(call)) for call in calls)


def test_a_cancelled_call_is_not_labelled(start_teacher: StartTeacher) -> None:
    gate = Gate()
    reader = reader_of([], start_teacher(gate), limits=Limits(window=1, window_max=1))
    with reader, TeacherPool.of(reader, timeout_s=LONG_S) as pool:
        first, *others = [pool.submit(x_of(number)) for number in range(5)]
        wait_until(lambda: gate.asked == 1)
        assert all(future.cancel() for future in others)
        assert all(future.done() for future in others)
        wait_until(lambda: have_ended(reader, range(1, 5)))
        gate.open.set()
        check_labels(0, first.result(LONG_S))
        check_labels(9, pool.label(x_of(9)))
        assert gate.asked == 2


def test_a_finalizer_may_cancel_with_any_lock_held(start_teacher: StartTeacher) -> None:
    """Python runs it in any thread, during any call."""
    gate, cancelled = Gate(), threading.Event()
    with pool_of(start_teacher(gate)) as pool:
        future = pool.submit(x_of(0))
        engine = pipeline_of(pool).engine

        def finalize() -> None:
            with engine.calls._lock, engine._send_lock:  # noqa: SLF001
                future.cancel()
            cancelled.set()

        threading.Thread(target=finalize, daemon=True).start()
        try:
            assert cancelled.wait(DEADLINE_S)
            wait_until(lambda: not engine.calls)
        finally:
            gate.open.set()
        check_labels(1, pool.label(x_of(1)))


def test_a_batch_that_teachers_refuse_is_an_error_of_its_call(teacher: ScriptedTeacher) -> None:
    def refuse(request: InferRequest) -> dict[str, Array]:
        if request.inputs["x"][0, 0] == 300:
            raise RequestRefused("too ugly")
        return label(request)

    teacher.behaviour = refuse
    with pool_of(teacher, canaries=None) as pool:
        check_labels(1, pool.label(x_of(1)))
        with pytest.raises(PoisonBatch, match="too ugly"):
            pool.label(x_of(3))
        check_labels(4, pool.label(x_of(4)))


def test_a_batch_that_does_not_fit_is_an_error_of_its_call(teacher: ScriptedTeacher) -> None:
    with pool_of(teacher, feeds={"x": "pixels"}) as pool:
        for _ in range(3):
            with pytest.raises(UsageError, match="feeds names field 'pixels'"):
                pool.label({"image": x_of(1)})
            check_labels(2, pool.label({"pixels": x_of(2)}))
        with pytest.raises(UsageError, match="a batch needs at least one numpy array"):
            pool.label("words")


def test_a_batch_without_rows_needs_no_teacher(teacher: ScriptedTeacher) -> None:
    teacher.behaviour = fail
    with pool_of(teacher) as pool:
        with pytest.raises(BatchError, match="at least one row"):
            pool.label(x_of(0, 0))
        with pytest.raises(BatchError, match="fields of this one are scalars"):
            pool.label(np.array(3.0))
        teacher.behaviour = label
        check_labels(1, pool.label(x_of(1)))
        asked = teacher.requests
        labels = pool.label({"x": x_of(0, 0)}, SHORT_S)
        assert labels["logits"].shape == (0, CLASSES)
        assert labels["logits"].dtype == np.float32
        assert teacher.requests == asked
        assert (pool.stats.calls, pool.stats.calls_failed) == (2, 0)


def test_settings_that_fit_no_model_end_all_calls(teacher: ScriptedTeacher) -> None:
    with pool_of(teacher, fetches=["nothing"]) as pool:
        for number in (1, 2):
            with pytest.raises(UsageError, match="nothing"):
                pool.label(x_of(number))


@pytest.mark.parametrize("what", ["calls", "bytes"])
def test_a_producer_waits_while_too_many_calls_wait(
    what: str, start_teacher: StartTeacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "calls":
        monkeypatch.setattr(pool_calls, "MAX_CALLS", 4)
    nbytes = x_of(0).nbytes
    options = {"upper_bytes": 1, "lower_bytes": 0, "limits": Limits(buffer_bytes=4 * nbytes)}
    gate = Gate()
    reader = reader_of([], start_teacher(gate), **(options if what == "bytes" else {}))
    with reader, TeacherPool.of(reader, timeout_s=LONG_S) as pool:
        waiting = [pool.submit(x_of(number)) for number in range(4)]
        with pytest.raises(LabelTimeout):
            pool.submit(x_of(4), SHORT_S)
        waiting[3].cancel()
        more = pool.submit(x_of(5))
        gate.open.set()
        for number, future in ((0, waiting[0]), (1, waiting[1]), (2, waiting[2]), (5, more)):
            check_labels(number, future.result(LONG_S))


def test_a_large_batch_is_not_overtaken_for_ever(start_teacher: StartTeacher) -> None:
    limits = Limits(buffer_bytes=4 * x_of(0).nbytes)
    reader = reader_of([], start_teacher(), upper_bytes=1, lower_bytes=0, limits=limits)
    stop = threading.Event()
    with reader, TeacherPool.of(reader, timeout_s=LONG_S) as pool, ThreadPoolExecutor(4) as threads:

        def call() -> None:
            while not stop.is_set():
                wait([pool.submit(x_of(number)) for number in range(3)])

        small = [threads.submit(call) for _ in range(4)]
        try:
            for number in range(5):
                check_labels(number, pool.label(x_of(number, 20)), rows=20)
        finally:
            stop.set()
        for one in small:
            one.result(LONG_S)


def test_a_call_that_cannot_be_sent_gives_back_its_room(
    teacher: ScriptedTeacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_calls, "MAX_CALLS", 2)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with pool_of(teacher) as pool:
        engine = pipeline_of(pool).engine
        for _ in range(5):
            with monkeypatch.context() as patched:
                patched.setattr(engine, "_send", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    pool.submit(x_of(0), SHORT_S)
        time.sleep(2 * SHORT_S)
        gate = Gate()
        teacher.behaviour = gate
        waiting = [pool.submit(x_of(number)) for number in range(2)]
        with pytest.raises(LabelTimeout):
            pool.submit(x_of(2), SHORT_S)
        gate.open.set()
        for number, future in enumerate(waiting):
            check_labels(number, future.result(LONG_S))


def test_a_task_that_is_cancelled_cancels_its_call(
    start_teacher: StartTeacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_calls, "MAX_CALLS", 2)
    gate = Gate()

    async def cancel(pool: TeacherPool) -> None:
        tasks = [asyncio.create_task(pool.label_async(x_of(number))) for number in range(3)]
        while gate.asked == 0:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        for task in tasks:  # one of them waits for room
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks)

    with pool_of(start_teacher(gate)) as pool:
        asyncio.run(cancel(pool))
        wait_until(lambda: not pipeline_of(pool).engine.calls)
        gate.open.set()
        check_labels(9, pool.label(x_of(9)))
        assert pool.stats.calls == 1


def test_the_time_of_a_task_also_runs_while_its_event_loop_has_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_calls, "MAX_CALLS", 1)
    tasks, limit_s = 200, 1.0

    async def call(pool: TeacherPool) -> list[Any]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        calls = [pool.label_async(x_of(number)) for number in range(tasks)]
        return await asyncio.gather(*calls, return_exceptions=True)

    with pool_of(NOBODY, timeout_s=limit_s) as pool:
        begun = time.monotonic()
        errors = asyncio.run(call(pool))
        assert all(isinstance(error, LabelTimeout) for error in errors)
        assert all("within 1 s" in str(error) for error in errors)
        # One after another, two in each second, they would need 100 seconds.
        assert time.monotonic() - begun < tasks / 2 * limit_s


@pytest.mark.parametrize("name", ["ordered", "upper_bytes", "world_size", "trace"])
def test_options_of_a_training_loop_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match=f"remove {name}="):
        pool_of(NOBODY, **{name: 1})


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), "1"])
def test_a_timeout_is_a_number_above_0(seconds: Any, teacher: ScriptedTeacher) -> None:
    with pytest.raises(UsageError, match="timeout_s"):
        pool_of(teacher, timeout_s=seconds)
    with pool_of(teacher) as pool, pytest.raises(UsageError, match="timeout_s"):
        pool.label(x_of(1), seconds)


def test_closing_ends_what_waits(start_teacher: StartTeacher) -> None:
    gate = Gate()
    pool = pool_of(start_teacher(gate))
    waiting = pool.submit(x_of(1))
    with pytest.raises(UsageError, match="pickled"):
        pickle.dumps(pool)
    pool.close()
    pool.close()
    with pytest.raises(UsageError, match="closed"):
        waiting.result(LONG_S)
    with pytest.raises(UsageError, match="closed"):
        pool.label(x_of(1))
    gate.open.set()


def test_calls_that_end_while_the_store_waits_are_not_labelled(
    start_teacher: StartTeacher, tmp_path: Path
) -> None:
    with kept_port() as port:
        reader = reader_of([], f"127.0.0.1:{port}", store=LabelStore(tmp_path / "s", 1 << 20))
        with reader, TeacherPool.of(reader, timeout_s=LONG_S) as pool:
            late = [pool.submit(x_of(number), SHORT_S) for number in range(30)]
            assert all(isinstance(one.exception(LONG_S), LabelTimeout) for one in late)
            wait_until(lambda: have_ended(reader, range(30)))
            waiting = pool.submit(x_of(40))
            teacher = start_teacher(port=port)
            teacher.parameters = {"content_id": "model-1"}
            check_labels(40, waiting.result(LONG_S))
            check_labels(41, pool.label(x_of(41)))
            assert teacher.requests == 2


def test_a_job_of_its_own(teacher: ScriptedTeacher) -> None:
    """A coordinator would let the second of two pools with one name supersede the first."""
    with pool_of(teacher) as pool, pool_of(teacher) as other, pool_of(NOBODY, job="own") as named:
        jobs = [one._reader.config.job for one in (pool, other, named)]  # noqa: SLF001
    assert len(set(jobs)) == 3
    assert jobs[0].startswith(f"pool-{socket.gethostname()}-{os.getpid()}-")
    assert jobs[2] == "own"

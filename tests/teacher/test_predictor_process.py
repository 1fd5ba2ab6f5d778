"""Real predictor processes, one and several: answers, crashes, ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from edl.proto.arena import GROWTH_BYTES, Array, Record
from edl.proto.datatypes import TensorSpec
from edl.runtime.errors import (
    BadAnswer,
    DeviceOutOfMemory,
    EdlError,
    ModelError,
    PredictorCrashed,
    ProcessFailed,
    RetryableError,
)
from edl.scheduler.batching import BatchRule
from edl.teacher import pool
from edl.teacher.batcher import Batcher
from edl.teacher.config import Device, PredictorConfig, TeacherConfig
from edl.teacher.pool import PredictorPool
from edl.teacher.predictor_jobs import PredictorReady, RequestLabels, Results
from edl.teacher.recorder import Recorder
from edl.teacher.request import BatchRequest, RequestedOutput
from edl.tests.leaks import open_files
from edl.tests.runtime.programs import wait_gone
from edl.tests.teacher.functions import HOLD, HOLD_VARIABLE, KILL, LARGE, MEMORY_FULL_VARIABLE, NAN
from edl.tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.system

FUNCTIONS = "edl.tests.teacher.functions"
STEERED = PredictorConfig(f"{FUNCTIONS}:steered")
NEEDS_MEMORY = PredictorConfig(f"{FUNCTIONS}:needs_memory")


def batch(order: float = 0.0, rows: int = 3) -> Array:
    x = np.full((rows, 4), 0.5, dtype=np.float32)
    x[0, 0] = order
    return x


def pids() -> list[int]:
    """Of the predictors of this test, in the order in which they were started."""
    children = [one for one in psutil.Process().children() if _is_predictor(one)]
    return [one.pid for one in sorted(children, key=lambda one: (one.create_time(), one.pid))]


def _is_predictor(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        words = " ".join(process.cmdline())
        return process.status() != psutil.STATUS_ZOMBIE and "predictor" in words
    return False


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that releases held batches when it exists."""
    file = tmp_path / "go"
    monkeypatch.setenv(HOLD_VARIABLE, str(file))
    return file


@pytest.fixture
def memory_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """If this file exists when NEEDS_MEMORY is loaded, its runs are out of memory."""
    file = tmp_path / "full"
    monkeypatch.setenv(MEMORY_FULL_VARIABLE, str(file))
    return file


class Bench:
    def __init__(
        self, *configs: PredictorConfig, on_progress: Callable[[str], None] | None = None
    ) -> None:
        self.progress: list[str] = []
        self.changes: list[bool] = []  # whether it was ready, at each change that this was told
        self.recorder = Recorder()
        self.pool = PredictorPool(
            configs, on_progress=on_progress or self.progress.append, on_change=self._change
        )
        self.batcher = Batcher(self.pool, 8, BatchRule(), self.recorder)
        self.batcher.start()
        self.pool.start()

    def _change(self) -> None:
        self.changes.append(self.pool.ready)
        self.batcher.devices_changed()

    def ask(self, order: float = 0.0) -> Array:
        answer = self.batcher.submit(
            BatchRequest({"x": batch(order)}, [RequestedOutput("twice")])
        ).result()
        labels = answer.outputs["twice"].copy()
        answer.release()
        return labels

    def close(self) -> None:
        self.batcher.stop()
        self.pool.stop()


@contextmanager
def running(*configs: PredictorConfig) -> Iterator[Bench]:
    with closing(Bench(*(configs or [STEERED] * 2))) as bench:
        wait_until(lambda: bench.pool.wait_loaded(0.1))
        yield bench


def submit(client: PredictorPool, x: Array) -> Results:
    (predictor,) = client.predictors
    return predictor.submit([BatchRequest({"x": x}, [RequestedOutput("twice")])])


def test_a_job_gives_its_memory_back_once_if_its_predictor_ends_meanwhile(hold: Path) -> None:
    """Else the same bytes would be two requests'."""
    with running(STEERED) as bench:
        client = bench.pool
        (predictor,), arena = client.predictors, client.inputs
        ends = threading.Lock()

        class EndsBehind:
            """The predictor ends as soon as the lock is free for the first time."""

            def __enter__(self) -> None:
                ends.acquire()

            def __exit__(self, *_: object) -> None:
                ends.release()
                if not taken:
                    predictor._lock = ends  # noqa: SLF001 - the moment is the point
                    for pid in pids():
                        os.kill(pid, signal.SIGKILL)
                    wait_until(lambda: not client.ready)
                    taken.append(arena.allocate(((batch().dtype, batch().shape),)))

        taken: list[Record] = []
        predictor._lock = EndsBehind()  # type: ignore[assignment] # noqa: SLF001
        submitted = submit(client, batch(HOLD))
        assert isinstance(submitted.exception(DEADLINE_S), RetryableError)
        taken.append(arena.allocate(((batch().dtype, batch().shape),)))
        assert taken[0].offset != taken[1].offset


def test_a_crash_is_blamed_on_the_job_that_ran_if_two_threads_submit_at_once() -> None:
    """The second thread comes while the first one is about to send."""
    second_came = threading.Event()  # it sends, or waits until the first one has sent

    class Sending:
        lock = threading.Lock()

        def __enter__(self) -> None:
            if threading.current_thread().name.startswith("second"):
                second_came.set()
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()

    with running(STEERED) as bench, ThreadPoolExecutor(1, "second") as second:
        (predictor,) = bench.pool.predictors
        predictor._send_lock = Sending()  # type: ignore[assignment] # noqa: SLF001 - see above
        channel = predictor._channel  # noqa: SLF001
        assert channel is not None
        send, fatal = channel.send, list[Results]()

        def send_late(kind: str, **fields: object) -> bool:
            if threading.current_thread() is threading.main_thread():
                second.submit(lambda: fatal.append(submit(bench.pool, batch(KILL))))
                assert second_came.wait(DEADLINE_S)
                return send(kind, **fields)
            sent = send(kind, **fields)
            second_came.set()
            return sent

        channel.send = send_late  # type: ignore[method-assign]
        (answer,) = submit(bench.pool, batch()).result(DEADLINE_S)
        assert isinstance(answer, RequestLabels)
        answer.release()
        wait_until(lambda: fatal)
        assert isinstance(fatal[0].exception(DEADLINE_S), PredictorCrashed)


def test_the_memory_of_inputs_and_labels_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of labels that cannot be read."""

    def fail(refs: object, arena: object) -> dict[str, Array]:
        raise OSError("no memory to map")

    def shared_bytes() -> int:
        return sum(size for one, size in open_files("memfd:").items() if one not in before)

    x = batch(rows=GROWTH_BYTES // 64)
    before, sizes = open_files("memfd:").keys(), list[int]()
    with running(STEERED) as bench:
        for _ in range(6):
            (answer,) = submit(bench.pool, x).result(DEADLINE_S)
            assert isinstance(answer, RequestLabels)
            assert answer.outputs["twice"].tobytes() == (x * 2).tobytes()
            assert answer.device_seconds > 0
            answer.release()
            sizes.append(shared_bytes())
        monkeypatch.setattr("edl.teacher.predictor_jobs.arrays_at", fail)
        for _ in range(6):
            with pytest.raises(OSError, match="no memory to map"):
                submit(bench.pool, x).result(DEADLINE_S)
            sizes.append(shared_bytes())
    assert {*sizes[3:]} == {sizes[3]}


def test_a_crash_fails_its_jobs_and_the_next_start_serves(hold: Path) -> None:
    with running(STEERED) as bench:
        client, before = bench.pool, bench.ask()
        held = [submit(client, batch(HOLD)) for _ in range(2)]
        wait_until(lambda: any(hold.parent.glob("go.*")))
        (pid,) = (one for one in pids() if hold.with_suffix(f".{one}").exists())
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(PredictorCrashed, match="ended while it computed this request"):
            held[0].result(DEADLINE_S)
        with pytest.raises(RetryableError, match="before it computed") as waited:
            held[1].result(DEADLINE_S)
        assert not isinstance(waited.value, PredictorCrashed)
        with pytest.raises(RetryableError, match="is restarting"):
            submit(client, batch()).result(DEADLINE_S)
        wait_until(lambda: client.ready)
        np.testing.assert_array_equal(bench.ask(), before)
        assert client.restarts == 1
        assert (bench.changes[0], False in bench.changes, bench.changes[-1]) == (True, True, True)


def test_a_measured_micro_batch_holds_for_the_next_start() -> None:
    with running(PredictorConfig(STEERED.model, micro_batch=None)) as bench:
        client = bench.pool
        chosen = client.require_loaded().micro_batch
        assert f"micro-batch={chosen}" in client.require_loaded().spec.numerics
        (pid,) = pids()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: client.restarts == 1 and client.ready)
        assert client.require_loaded().micro_batch == chosen
    assert sum("by ms/sample" in text for text in bench.progress) == 1


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_deterministic_one_keeps_its_micro_batch(deterministic: bool) -> None:
    error, rows = (PredictorCrashed, 8) if deterministic else (DeviceOutOfMemory, 2)
    with running(*TeacherConfig("m", STEERED, deterministic=deterministic).predictors) as bench:
        with pytest.raises(error):
            bench.ask(LARGE)
        assert bench.pool.require_loaded().micro_batch == rows


@pytest.mark.parametrize(
    ("models", "error", "words"),
    [
        (["always_nan"], ModelError, "NaN or infinite"),
        (["dies"], ProcessFailed, r"SIGKILL.*was loading .*functions:dies"),
        (["steered", "nothing"], ModelError, "nothing"),
    ],
)
def test_unloadable_models_are_not_retried(
    models: list[str], error: type[EdlError], words: str
) -> None:
    """One of several ends the start of all."""
    with closing(Bench(*(PredictorConfig(f"{FUNCTIONS}:{model}") for model in models))) as bench:
        with pytest.raises(error, match=words):
            bench.pool.wait_loaded(DEADLINE_S)
        assert isinstance(bench.pool.failure, error)
        assert bench.pool.restarts == 0


def test_a_model_changed_on_disk_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "changing.py"
    module.write_text("def double(x):\n    return {'twice': x['x'] * 2}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    config = PredictorConfig("changing:double", inputs=(TensorSpec("x", "FP32", (-1, 4)),))
    with running(config) as bench:
        module.write_text("def double(x):\n    return {'twice': x['x'] * 2.0}\n")
        for pid in pids():
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: bench.pool.failure)
        assert isinstance(bench.pool.failure, ModelError)
        assert "changed while it was served" in str(bench.pool.failure)


def test_an_error_of_a_callback_gives_it_up() -> None:
    def closed(text: str) -> None:
        raise BrokenPipeError("nobody reads it")

    with (
        closing(Bench(STEERED, on_progress=closed)) as bench,
        pytest.raises(ProcessFailed, match="given up: BrokenPipeError"),
    ):
        bench.pool.wait_loaded(DEADLINE_S)


def test_fp32_is_exact_on_gpus() -> None:
    assert STEERED.environment["NVIDIA_TF32_OVERRIDE"] == "0"


def test_a_crash_of_one_of_two_costs_its_own_jobs(hold: Path) -> None:
    with running() as bench, ThreadPoolExecutor(4) as threads:
        victim, other = pids()
        held = [threads.submit(bench.ask, HOLD) for _ in range(4)]
        wait_until(lambda: all(hold.with_suffix(f".{pid}").exists() for pid in (victim, other)))
        count = "edl_teacher_batch_samples_count"
        wait_until(lambda: bench.recorder.metric_registry.get_sample_value(count) == 4)  # 2 each
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: sorted(one.ready for one in bench.pool.predictors) == [False, True])
        hold.touch()
        outcomes = [future.exception(DEADLINE_S) for future in held]
        lost = [error for error in outcomes if error is not None]
        assert len(lost) == 2, outcomes
        assert all(isinstance(error, RetryableError) for error in lost)
        for future, error in zip(held, outcomes, strict=True):
            if error is None:
                assert future.result()[0, 0] == 2 * HOLD
        # The other serves while the first restarts, and both do after that.
        assert bench.pool.ready
        np.testing.assert_array_equal(bench.ask(7.0), batch(7.0) * 2)
        wait_until(lambda: all(one.ready for one in bench.pool.predictors))
        assert (bench.pool.restarts, bench.pool.device_count) == (1, 2)
        assert other in pids()
        bench.ask()
        every = pids()
    wait_gone([victim, *every])


def test_predictors_that_keep_crashing_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "GIVE_UP_AFTER_CRASHES", 1)
    with running() as bench:
        assert bench.pool.device_count == 2
        with pytest.raises(RetryableError):
            bench.ask(KILL)
        wait_until(lambda: bench.pool.device_count == 1)
        assert bench.pool.failure is None
        bench.ask()
        with pytest.raises(RetryableError):
            bench.ask(KILL)
        wait_until(lambda: bench.pool.failure)
        with pytest.raises(ProcessFailed, match="SIGKILL"):
            bench.pool.wait_loaded(0)
        assert not bench.pool.ready


@pytest.mark.parametrize("most_crashes", [2, 1000])
def test_a_restart_that_finds_no_memory_is_tried_again_until_it_is_given_up_alone(
    memory_full: Path, monkeypatch: pytest.MonkeyPatch, most_crashes: int
) -> None:
    monkeypatch.setattr(pool, "GIVE_UP_AFTER_CRASHES", most_crashes)
    with running(NEEDS_MEMORY, NEEDS_MEMORY) as bench:
        memory_full.touch()
        os.kill(pids()[0], signal.SIGKILL)
        wait_until(lambda: bench.pool.restarts >= 2 or bench.pool.device_count == 1)
        assert bench.pool.failure is None
        bench.ask()
        whys = [one.failure for one in bench.pool.predictors if one.failure is not None]
        assert [type(why) for why in whys] == [ProcessFailed] * (most_crashes == 2)
        if whys:
            assert "could not load the model again: the model fails on an example" in str(whys)
        else:
            memory_full.unlink()
            wait_until(lambda: all(one.ready for one in bench.pool.predictors))


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system pins no processes")
def test_equal_devices_measure_once_and_are_pinned() -> None:
    core = min(os.sched_getaffinity(0))
    config = PredictorConfig(STEERED.model, micro_batch=None)
    pinned = config.on(Device("cpu", (core,)))
    with running(pinned, pinned, config) as bench:
        assert sum("by ms/sample" in text for text in bench.progress) == 1
        loaded = bench.pool.require_loaded()
        assert f"micro-batch={loaded.micro_batch}" in loaded.spec.numerics
        assert "mixed" not in loaded.spec.numerics
        cores = [frozenset(psutil.Process(pid).cpu_affinity() or ()) for pid in pids()]
        every = frozenset(os.sched_getaffinity(0))
        assert sorted(cores, key=len) == [{core}, {core}, every]
        assert any(text.startswith(f"predictor 2 of 3, on cpu:{core}: ") for text in bench.progress)


def test_a_model_is_loaded_once_the_reports_of_its_predictors_are_combined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    combining, go_on, combined = threading.Event(), threading.Event(), PredictorReady.combined

    def pausing(reports: Sequence[PredictorReady], merge_samples: int) -> PredictorReady:
        combining.set()
        go_on.wait(DEADLINE_S)
        return combined(reports, merge_samples)

    monkeypatch.setattr(PredictorReady, "combined", pausing)
    with closing(Bench(STEERED)) as bench:
        try:
            assert combining.wait(DEADLINE_S)
            assert not bench.pool.wait_loaded(0.0)
        finally:
            go_on.set()
        wait_until(lambda: bench.pool.wait_loaded(0.1))
        assert bench.pool.require_loaded().spec.content_id


def test_different_devices_have_mixed_numerics_and_a_common_time() -> None:
    configs: Sequence[PredictorConfig] = [
        PredictorConfig(STEERED.model, micro_batch=size) for size in (4, 8)
    ]
    with running(configs[0]) as alone, running(*configs) as bench:
        loaded = bench.pool.require_loaded()
        assert loaded.spec.numerics_id.startswith("mixed-")
        assert alone.pool.require_loaded().spec.content_id == loaded.spec.content_id
        with pytest.raises(BadAnswer, match="NaN"):
            bench.ask(NAN)
        for _ in range(20):
            bench.ask()
        lanes = [predictor.t_t_s for predictor in bench.pool.predictors]
        assert bench.pool.t_t_s == pytest.approx(2 / sum(1 / t_t_s for t_t_s in lanes))

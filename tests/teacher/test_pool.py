"""Several real predictor processes: one crashes or is given up, the others serve on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from edl.errors import ModelError, ProcessFailed, RetryableError
from edl.proto.arena import Array
from edl.scheduler.batching import BatchRule
from edl.teacher import predictor_client
from edl.teacher.batcher import Batcher
from edl.teacher.config import PredictorConfig
from edl.teacher.devices import Device
from edl.teacher.metrics import TeacherMetrics
from edl.teacher.pool import PredictorPool
from edl.teacher.predictor_session import PredictorSession
from edl.teacher.wanted import Wanted
from edl.tests.ground.programs import wait_for, wait_gone
from edl.tests.teacher.functions import HOLD, HOLD_VARIABLE, KILL, LOSE

FUNCTIONS = "edl.tests.teacher.functions"
START_S = 60.0
WAIT_S = 30.0


class Bench:
    """Two predictors behind a batcher."""

    def __init__(self, *configs: PredictorConfig, slots: int = 8) -> None:
        self.changes = threading.Semaphore(0)
        self.pool = PredictorPool(configs, on_change=self._changed)
        self.batcher = Batcher(self.pool, slots, BatchRule(), TeacherMetrics())
        self.batcher.start()
        self.pool.start()

    def _changed(self) -> None:
        self.batcher.devices_changed()
        self.changes.release()

    def pids(self) -> list[int]:
        return [session.process.pid for session in self._sessions()]

    def asked(self) -> list[int]:
        """Jobs that each predictor has, and has not answered."""
        return [len(session._jobs) for session in self._sessions()]

    def _sessions(self) -> list[PredictorSession]:
        sessions = [client._session for client in self.pool._clients]
        return [session for session in sessions if session is not None]

    def ask(self, order: float = 0.0) -> Array:
        x = np.full((2, 4), 0.5, dtype=np.float32)
        x[0, 0] = order
        answer = self.batcher.submit({"x": x}, [Wanted("twice")]).result()
        try:
            return answer.outputs["twice"].copy()
        finally:
            answer.release()

    def close(self) -> None:
        self.batcher.stop()
        self.pool.stop()


@contextmanager
def running(*configs: PredictorConfig) -> Iterator[Bench]:
    bench = Bench(*(configs or [PredictorConfig(f"{FUNCTIONS}:steered")] * 2))
    try:
        wait_for(lambda: bench.pool.settled(0.1), START_S)
        yield bench
    finally:
        bench.close()


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file whose coming into being lets held batches go."""
    file = tmp_path / "go"
    monkeypatch.setenv(HOLD_VARIABLE, str(file))
    return file


def test_one_of_two_crashes_in_mid_request_and_only_its_requests_notice(hold: Path) -> None:
    with running() as bench, ThreadPoolExecutor(4) as threads:
        victim, other = bench.pids()
        held = [threads.submit(bench.ask, HOLD) for _ in range(4)]
        wait_for(lambda: hold.with_suffix(f".{victim}").exists(), WAIT_S)
        wait_for(lambda: hold.with_suffix(f".{other}").exists(), WAIT_S)
        wait_for(lambda: bench.asked() == [2, 2], WAIT_S)
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: bench.pool.ready_lanes() == [False, True], WAIT_S)
        hold.touch()
        outcomes = [future.exception(WAIT_S) for future in held]
        lost = [error for error in outcomes if error is not None]
        assert len(lost) == 2, outcomes
        assert all(isinstance(error, RetryableError) for error in lost)
        for future, error in zip(held, outcomes, strict=True):
            if error is None:
                assert future.result()[0, 0] == 2 * HOLD
        # Served on by the other while the first is on its way back, and by both after that.
        assert bench.pool.ready
        np.testing.assert_array_equal(bench.ask(7.0)[0], [14, 1, 1, 1])
        wait_for(lambda: bench.pool.ready_lanes() == [True, True], START_S)
        assert (bench.pool.restarts, bench.pool.lanes) == (1, 2)
        assert other in bench.pids()
        bench.ask()
        pids = bench.pids()
    wait_gone([victim, *pids])


def test_a_device_that_is_lost_costs_its_job_and_a_start_and_no_more() -> None:
    with running() as bench:
        before = bench.pids()
        with pytest.raises(RetryableError, match="unspecified launch failure"):
            bench.ask(LOSE)
        wait_for(lambda: bench.pool.restarts == 1, WAIT_S)
        wait_for(lambda: bench.pool.ready_lanes() == [True, True], START_S)
        for _ in range(8):
            np.testing.assert_array_equal(bench.ask(7.0)[0], [14, 1, 1, 1])
        assert len(set(before) - set(bench.pids())) == 1


def test_one_that_keeps_crashing_is_given_up_and_the_last_takes_the_teacher_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(predictor_client, "CRASHES_AT_MOST", 1)
    with running() as bench:
        assert bench.pool.lanes == 2
        with pytest.raises(RetryableError):
            bench.ask(KILL)
        wait_for(lambda: bench.pool.lanes == 1, WAIT_S)
        assert bench.pool.failure is None
        bench.ask()
        with pytest.raises(RetryableError):
            bench.ask(KILL)
        wait_for(lambda: bench.pool.failure is not None, WAIT_S)
        assert isinstance(bench.pool.failure, ProcessFailed)
        assert not bench.pool.ready


def test_a_refused_model_ends_the_start_of_all() -> None:
    configs = [PredictorConfig(f"{FUNCTIONS}:steered"), PredictorConfig(f"{FUNCTIONS}:nothing")]
    bench = Bench(*configs)
    try:
        with pytest.raises(ModelError, match="nothing"):
            wait_for(lambda: bench.pool.settled(0.1), START_S)
        assert isinstance(bench.pool.failure, ModelError)
    finally:
        bench.close()


def test_equal_devices_measure_their_micro_batch_once_and_are_bound_to_their_cores() -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("this system pins no processes")
    core = min(os.sched_getaffinity(0))
    config = PredictorConfig(f"{FUNCTIONS}:steered", micro_batch=None)
    progress: list[str] = []
    pinned = config.on(Device("cpu", (core,)))
    pool = PredictorPool([pinned, pinned, config], on_progress=progress.append)
    pool.start()
    try:
        wait_for(lambda: pool.settled(0.1), START_S)
        assert sum("by ms/sample" in text for text in progress) == 1
        loaded = pool.require_loaded()
        assert f"micro-batch={loaded.micro_batch}" in loaded.spec.numerics
        assert "mixed" not in loaded.spec.numerics
        pids = [c._session.process.pid for c in pool._clients if c._session is not None]
        cores = [set(psutil.Process(pid).cpu_affinity()) for pid in pids]
        assert cores == [{core}, {core}, os.sched_getaffinity(0)]
        assert any(text.startswith(f"predictor 2 of 3, on cpu:{core}: ") for text in progress)
    finally:
        pool.stop()


def test_devices_that_differ_have_numerics_of_their_own_and_one_time_together() -> None:
    configs = [PredictorConfig(f"{FUNCTIONS}:steered", micro_batch=size) for size in (4, 8)]
    with running(*configs) as bench:
        loaded = bench.pool.require_loaded()
        assert loaded.spec.numerics_id.startswith("mixed-")
        one = bench.pool._clients[0].loaded
        assert one is not None
        assert one.spec.content_id == loaded.spec.content_id
        for _ in range(20):
            bench.ask()
        lanes = [bench.pool.lane_t_t_s(index) for index in range(2)]
        assert bench.pool.t_t_s == pytest.approx(2 / sum(1 / t_t_s for t_t_s in lanes))

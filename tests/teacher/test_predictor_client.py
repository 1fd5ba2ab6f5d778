"""The socket side and a real predictor process: answers, crashes, ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from edl.errors import (
    BadAnswer,
    EdlError,
    ModelError,
    ProcessFailed,
    RequestRefused,
    RetryableError,
)
from edl.proto.arena import Array
from edl.teacher import predictor_client
from edl.teacher.backends.open import open_backend
from edl.teacher.config import PredictorConfig
from edl.teacher.microbatch import run_in_micro_batches
from edl.teacher.predictor_client import PredictorClient
from edl.teacher.predictor_session import Answer
from edl.teacher.request import Request
from edl.teacher.wanted import Wanted
from edl.tests.ground.programs import wait_for, wait_gone
from edl.tests.teacher.networks import FAIL, HOLD, HOLD_VARIABLE, KILL, NAN, REFUSE

NETWORKS = "edl.tests.teacher.networks"
START_S = 60.0


@contextmanager
def running(model: str = f"{NETWORKS}:steered") -> Iterator[PredictorClient]:
    client = PredictorClient(PredictorConfig(model))
    client.start()
    try:
        assert client.settled(START_S)
        yield client
    finally:
        client.stop()


@pytest.fixture
def hold(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file whose coming into being lets held batches go."""
    file = tmp_path_factory.mktemp("hold") / "go"
    monkeypatch.setenv(HOLD_VARIABLE, str(file))
    return file


def batch(order: float = 0.0, rows: int = 3) -> dict[str, Array]:
    x = np.full((rows, 4), 0.5, dtype=np.float32)
    x[0, 0] = order
    return {"x": x}


def ask(client: PredictorClient, order: float = 0.0) -> Array:
    answer = only(client.submit([Request(batch(order), [Wanted("twice")])]).result())
    labels = answer.outputs["twice"].copy()
    answer.release()
    return labels


def only(results: Sequence[Answer | EdlError]) -> Answer:
    """The answer to a job of one request; raises what it ends with."""
    (result,) = results
    if isinstance(result, EdlError):
        raise result
    return result


def jobs_at(client: PredictorClient) -> int:
    session = client._session
    assert session is not None
    return len(session._jobs)


def pid_of(client: PredictorClient) -> int:
    session = client._session
    assert session is not None
    return session.process.pid


def test_labels_are_those_of_the_model_in_process_bit_for_bit(exported: Path) -> None:
    images = np.random.default_rng(1).standard_normal((21, 1, 8, 8), dtype=np.float32)
    backend = open_backend(str(exported))
    expected = run_in_micro_batches(backend.run, {"image": images}, 8)
    with running(str(exported)) as client:
        loaded = client.loaded
        assert loaded is not None
        answer = only(
            client.submit([Request({"image": images}, list(map(Wanted, expected)))]).result()
        )
        for name, array in expected.items():
            assert answer.outputs[name].tobytes() == array.tobytes()
        assert answer.device_seconds > 0
        answer.release()
        session = client._session
        assert session is not None
        assert session._inputs.used_bytes == 0
        pid = session.process.pid
    assert loaded.spec == backend.spec.in_micro_batches(8)
    assert 0 < loaded.t_t_s < 1
    wait_gone([pid])


def test_one_job_fails_and_the_next_does_not() -> None:
    with running() as client:
        with pytest.raises(RequestRefused, match="no such word"):
            ask(client, REFUSE)
        with pytest.raises(RetryableError, match="out of device memory"):
            ask(client, FAIL)
        with pytest.raises(BadAnswer, match="NaN"):
            ask(client, NAN)
        np.testing.assert_array_equal(ask(client, 7), batch(7)["x"] * 2)
        assert client.restarts == 0


def test_a_crash_fails_what_was_there_and_the_next_start_serves_on(hold: Path) -> None:
    changes: list[bool] = []
    client = PredictorClient(
        PredictorConfig(f"{NETWORKS}:steered"), on_change=lambda: changes.append(client.ready)
    )
    client.start()
    try:
        assert client.settled(START_S)
        before = ask(client)
        with ThreadPoolExecutor(2) as pool:
            held = [pool.submit(ask, client, HOLD) for _ in range(2)]
            wait_for(lambda: jobs_at(client) == 2)
            os.kill(pid_of(client), signal.SIGKILL)
            for future in held:
                with pytest.raises(RetryableError, match="ended in mid-request"):
                    future.result(30)
        with pytest.raises(RetryableError, match="is restarting"):
            ask(client)
        wait_for(lambda: client.ready, START_S)
        np.testing.assert_array_equal(ask(client), before)
        assert client.restarts == 1
        assert changes[0] is True
        assert False in changes
        assert changes[-1] is True
    finally:
        client.stop()


def test_crashes_without_an_answer_in_between_end_it_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(predictor_client, "CRASHES_AT_MOST", 2)
    failed = threading.Event()
    client = PredictorClient(
        PredictorConfig(f"{NETWORKS}:steered"),
        on_change=lambda: failed.set() if client.failure else None,
    )
    client.start()
    try:
        assert client.settled(START_S)
        with pytest.raises(RetryableError):
            ask(client, KILL)
        wait_for(lambda: client.ready, START_S)
        with pytest.raises(RetryableError):
            ask(client, KILL)
        assert failed.wait(START_S)
        assert isinstance(client.failure, ProcessFailed)
        assert "died 2 times within 60 s" in str(client.failure)
        assert "SIGKILL" in str(client.failure)
        with pytest.raises(ProcessFailed):
            client.settled(0)
    finally:
        client.stop()


def test_what_was_measured_once_holds_for_the_next_start_too() -> None:
    client = PredictorClient(PredictorConfig(f"{NETWORKS}:steered", micro_batch=None))
    client.start(micro_batch=2)
    try:
        assert client.settled(START_S)
        assert client.loaded is not None
        assert client.loaded.micro_batch == 2
        assert "micro-batch=2" in client.loaded.spec.numerics
        os.kill(pid_of(client), signal.SIGKILL)
        wait_for(lambda: client.restarts == 1 and client.ready, START_S)
        assert client.loaded.micro_batch == 2
    finally:
        client.stop()


def test_a_model_that_cannot_be_served_is_refused_not_retried() -> None:
    client = PredictorClient(PredictorConfig(f"{NETWORKS}:always_nan"))
    client.start()
    try:
        with pytest.raises(ModelError, match="NaN or infinite"):
            client.settled(START_S)
        assert client.restarts == 0
    finally:
        client.stop()


def test_a_predictor_that_dies_while_loading_says_how() -> None:
    client = PredictorClient(PredictorConfig(f"{NETWORKS}:dies"))
    client.start()
    try:
        with pytest.raises(ProcessFailed, match=r"SIGKILL.*was loading .*networks:dies"):
            client.settled(START_S)
    finally:
        client.stop()


def test_it_can_be_stopped_while_it_loads() -> None:
    progress = threading.Event()
    client = PredictorClient(
        PredictorConfig(f"{NETWORKS}:steered"), on_progress=lambda text: progress.set()
    )
    client.start()
    assert progress.wait(START_S)
    pid = pid_of(client)
    client.stop()
    wait_gone([pid])
    with pytest.raises(RetryableError, match="is restarting"):
        ask(client)


def test_a_model_that_changes_while_it_is_served_ends_it(tmp_path: Path, exported: Path) -> None:
    for part in (".json", ".pdiparams"):
        (tmp_path / f"net{part}").write_bytes(exported.with_suffix(part).read_bytes())
    weights = tmp_path / "net.pdiparams"
    with running(str(tmp_path)) as client:
        changed = bytearray(weights.read_bytes())
        changed[-1] ^= 1
        weights.write_bytes(changed)
        os.kill(pid_of(client), signal.SIGKILL)
        wait_for(lambda: client.failure is not None, START_S)
        assert isinstance(client.failure, ModelError)
        assert "changed while it was served" in str(client.failure)


def test_one_that_nobody_can_listen_to_is_given_up_in_words() -> None:
    def closed(text: str) -> None:
        raise BrokenPipeError("nobody reads it")

    client = PredictorClient(PredictorConfig(f"{NETWORKS}:steered"), on_progress=closed)
    client.start()
    try:
        with pytest.raises(ProcessFailed, match="given up: BrokenPipeError"):
            client.settled(START_S)
    finally:
        client.stop()

"""A model that crashes, returns NaN or takes its time: whose batch it was is told, nobody else.

Short forms in `make test`, hundreds of crashes and a whole minute in `make nightly`.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from edl.proto import inference_pb2 as pb
from edl.proto import tensors
from edl.proto.security import open_channel
from edl.tests.ground.programs import wait_for
from edl.tests.system.teacher_process import ANSWER_S, START_S, Teacher, refusal, serving
from edl.tests.system.trouble import (
    STEERED,
    Code,
    attempt,
    full,
    labelled_throughout,
    metric,
    nothing_leaks,
    over_http,
    rows,
    serves,
)
from edl.tests.teacher.functions import KILL, NAN, SLEEP

LISTEN = ("--http", "0", "--metrics-listen", "0")
#: What its pool and gRPC start for a second call at the same time.
MORE_THREADS = 4


@pytest.mark.parametrize("crashes", [4, full(100)])
def test_a_predictor_that_crashes_in_mid_request_costs_that_request(crashes: int) -> None:
    with serving(*LISTEN, "--devices", "cpu,cpu", model=STEERED) as teacher:
        serves(teacher)
        crash(teacher, over="grpc")
        # Of two predictors one serves on; what waits at the other goes with it.
        with (
            nothing_leaks(teacher, MORE_THREADS),
            labelled_throughout(teacher, Code.ABORTED, soon_s=START_S) as codes,
        ):
            for number in range(1, crashes):
                crash(teacher, over="http" if number % 2 else "grpc")
        assert codes[Code.ABORTED] < 4 * crashes, codes
        assert metric(teacher, "edl_teacher_predictor_restarts_total") == crashes
        serves(teacher)


def crash(teacher: Teacher, over: str) -> None:
    """Have a predictor die by a request, and wait until another one is there."""
    loaded = loads(teacher)
    if over == "http":
        answer = over_http(teacher, rows(KILL))
        assert answer.status_code == 503, answer.text
        assert "the predictor ended in mid-request" in answer.json()["error"]
    else:
        assert refusal(lambda: teacher.ask(KILL)) is Code.ABORTED
    wait_for(lambda: loads(teacher) > loaded and teacher.ready, START_S)


def loads(teacher: Teacher) -> int:
    """How often a predictor has been made ready."""
    return sum("self-test passed" in line for line in teacher.process.tail(1000))


@pytest.mark.parametrize("times", [100, full(20_000)])
def test_labels_that_are_not_finite_reach_nobody_and_cost_nothing(times: int) -> None:
    with serving(*LISTEN, "--batch-max", "32", model=STEERED) as teacher:
        serves(teacher)
        # Requests are merged: the good ones stand in the same run as those that get NaN.
        with nothing_leaks(teacher, MORE_THREADS), labelled_throughout(teacher):
            for _ in range(times):
                assert attempt(teacher, rows(NAN)) == (Code.INTERNAL, None)
            answer = over_http(teacher, rows(NAN))
            assert answer.status_code == 500
            assert "'twice' holds 4 values of 12 that are NaN" in answer.json()["error"]
        assert metric(teacher, 'edl_teacher_output_errors_total{output="twice"}') == times + 1
        assert metric(teacher, 'edl_teacher_requests_total{outcome="bad_answer"}') == times + 1
        serves(teacher)


@pytest.mark.parametrize("seconds", [8, full(60)])
def test_a_model_that_takes_its_time(seconds: int) -> None:
    """Who waits longer than its deadline is told so in time; who is patient gets its labels."""
    with serving(*LISTEN, "--slots", "4", model=STEERED) as teacher:
        serves(teacher)
        long = rows(SLEEP)
        long[0, 1] = seconds
        patience_s = seconds / 4
        with nothing_leaks(teacher, MORE_THREADS + 4), ThreadPoolExecutor(4) as pool:
            began = time.monotonic()
            patient = pool.submit(attempt, teacher, long, 4.0 * seconds + ANSWER_S)
            wait_for(lambda: metric(teacher, "edl_teacher_in_flight_requests") == 1)
            impatient = pool.submit(attempt, teacher, rows(), patience_s)
            behind = pool.submit(attempt, teacher, rows(about=3.0), 4.0 * seconds + ANSWER_S)
            hurried = pool.submit(hangs_up, teacher, patience_s)
            assert impatient.result(ANSWER_S + seconds) == (Code.DEADLINE_EXCEEDED, None)
            hurried.result(ANSWER_S + seconds)
            assert not patient.done(), "neither had to wait for the model"
            # The socket side is as awake as ever, though the model is not.
            probes = 0
            while not patient.done():
                started = time.monotonic()
                assert teacher.live
                assert teacher.ready
                assert time.monotonic() - started < 2.0
                probes += 1
            assert probes > 5
            code, labels = patient.result()
            assert (code, time.monotonic() - began >= seconds) == (Code.OK, True)
            np.testing.assert_array_equal(labels, long * 2)
            code, labels = behind.result(ANSWER_S)
            assert code is Code.OK
            np.testing.assert_array_equal(labels, rows(about=3.0) * 2)
        assert metric(teacher, "edl_teacher_expired_total") == 2, "nobody waited for them"
        assert metric(teacher, "edl_teacher_in_flight_requests") == 0
        serves(teacher)


def hangs_up(teacher: Teacher, after_s: float) -> None:
    """A caller over HTTP, which has no deadline in its request: it hangs up."""
    with pytest.raises(httpx.ReadTimeout):
        over_http(teacher, rows(), after_s)


@pytest.mark.parametrize("seconds", [8, full(60)])
def test_a_slot_of_a_caller_that_left_is_taken_until_the_model_is_done(seconds: int) -> None:
    with serving(*LISTEN, "--slots", "1", model=STEERED) as teacher:
        serves(teacher)
        long = rows(SLEEP)
        long[0, 1] = seconds
        with nothing_leaks(teacher, MORE_THREADS), open_channel(teacher.address, None) as channel:
            began = time.monotonic()
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", None, None)
            data = tensors.encode_request(model_name="m", inputs={"x": long})
            assert refusal(lambda: call(data, timeout=seconds / 4)) is Code.DEADLINE_EXCEEDED
            # No memory is used twice: the model has that batch still.
            assert attempt(teacher, rows())[0] is Code.RESOURCE_EXHAUSTED
            full_up = over_http(teacher, rows())
            assert full_up.status_code == 429
            assert int(full_up.headers["Retry-After"]) >= 1
            assert teacher.probe("ServerReady", pb.ServerReadyResponse).ready
            wait_for(lambda: not teacher.busy(), seconds + ANSWER_S)
            assert time.monotonic() - began > 0.9 * seconds
        serves(teacher)

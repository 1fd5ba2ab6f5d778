"""Twice as many requests as a real teacher can answer: answered in time, or refused with a hint."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import pytest

from edl.proto import tensors
from edl.proto.arena import Array
from edl.proto.security import open_channel
from edl.proto.status import PUSHBACK
from edl.tests.ground.programs import wait_for
from edl.tests.system.teacher_process import ANSWER_S, serving
from edl.tests.system.trouble import Footprint

SLOW = "edl.tests.teacher.functions:slow"
#: Of `slow`, which takes 10 ms for a sample; a request has 2.
REQUESTS_PER_S = 50
DEADLINE_S = 1.0
#: Which its pool may start for the greatest crowd so far.
MORE_THREADS = 8
#: One in so many has no more time than a few turns of the device.
HURRIED = 5
HURRIED_S = 0.06

Code = grpc.StatusCode


@dataclass
class Load:
    """Requests that are sent at their time, whether or not earlier ones were answered."""

    codes: Counter[Code] = field(default_factory=Counter)
    late: list[float] = field(default_factory=list)
    wrong: int = 0
    without_hint: int = 0
    hints_ms: list[int] = field(default_factory=list)
    open: int = 0

    def send(self, call: Any, number: int) -> None:
        within_s = HURRIED_S if number % HURRIED == 0 else DEADLINE_S
        data = tensors.encode_request(model_name="m", inputs={"x": batch(number)})
        began = time.monotonic()
        self.open += 1
        future = call.future(data, timeout=within_s)
        future.add_done_callback(lambda done: self._ended(done, number, began, within_s))

    def _ended(self, done: Any, number: int, began: float, within_s: float) -> None:
        code, took_s = done.code(), time.monotonic() - began
        if code is Code.OK:
            labels = tensors.decode_response(done.result()).outputs["twice"]
            self.wrong += not np.array_equal(labels, batch(number) * 2)
        if code is Code.OK and took_s > within_s + 0.2:
            self.late.append(took_s)
        if code is Code.RESOURCE_EXHAUSTED:
            hints = [int(value) for key, value in done.trailing_metadata() if key == PUSHBACK]
            self.hints_ms += hints
            self.without_hint += not hints
        self.codes[code] += 1
        self.open -= 1


def batch(number: int) -> Array:
    """Two samples that no other request has."""
    return np.full((2, 100_000), number, dtype=np.float32)


@pytest.mark.serial
@pytest.mark.parametrize(
    "seconds",
    [6, pytest.param(60, marks=[pytest.mark.nightly, pytest.mark.timeout(300)])],
)
def test_twice_the_load_is_answered_in_time_or_refused_and_memory_stays_flat(seconds: int) -> None:
    with serving("--slots", "8", model=SLOW) as teacher:
        channel = open_channel(teacher.address, None)
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", None, None)
        load, held = Load(), Footprint.of(teacher)
        began, count = time.monotonic(), 2 * REQUESTS_PER_S * seconds
        for number in range(count):
            due = began + number / (2 * REQUESTS_PER_S)
            time.sleep(max(0.0, due - time.monotonic()))  # the load is a rate
            load.send(call, number)
            if number == count // 3:
                held = Footprint.of(teacher)
        wait_for(lambda: load.open == 0)
        leaked = Footprint.of(teacher).beyond(held, MORE_THREADS)

        codes = load.codes
        assert set(codes) <= {Code.OK, Code.RESOURCE_EXHAUSTED, Code.DEADLINE_EXCEEDED}, codes
        assert codes[Code.OK] >= 0.6 * REQUESTS_PER_S * seconds, codes
        assert codes[Code.RESOURCE_EXHAUSTED] > 0, codes
        assert codes[Code.DEADLINE_EXCEEDED] <= count / HURRIED, codes
        assert not load.late
        assert not load.without_hint
        assert 0 < min(load.hints_ms) <= max(load.hints_ms) <= 1000 * ANSWER_S
        assert not load.wrong
        assert not leaked, f"{leaked} than at a third of the time"
        # It serves on as if nothing had been.
        channel.close()
        labels = teacher.infer({"x": batch(3)[:, :4]}).outputs["twice"]
        np.testing.assert_array_equal(labels, batch(3)[:, :4] * 2)

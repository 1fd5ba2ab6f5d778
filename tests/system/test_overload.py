"""Twice as many requests as a real teacher can answer: answered in time, or refused with a hint."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

from edl.proto import tensors
from edl.proto.security import open_channel
from edl.proto.status import PUSHBACK
from edl.tests.ground.programs import wait_for
from edl.tests.system.teacher_process import ANSWER_S, Teacher, serving

SLOW = "edl.tests.teacher.functions:slow"
#: Of `slow`, which takes 10 ms for a sample; a request has 2.
REQUESTS_PER_S = 50
DEADLINE_S = 1.0
#: One in so many has no more time than a few turns of the device.
HURRIED = 5
HURRIED_S = 0.06
LEAK_BYTES = 40 << 20

Code = grpc.StatusCode


@dataclass
class Load:
    """Requests that are sent at their time, whether or not earlier ones were answered."""

    teacher: Teacher
    codes: Counter[Code] = field(default_factory=Counter)
    late: list[float] = field(default_factory=list)
    without_hint: int = 0
    hints_ms: list[int] = field(default_factory=list)
    open: int = 0

    def send(self, call: Any, data: bytes, number: int) -> None:
        within_s = HURRIED_S if number % HURRIED == 0 else DEADLINE_S
        began = time.monotonic()
        self.open += 1
        future = call.future(data, timeout=within_s)
        future.add_done_callback(lambda done: self._ended(done, began, within_s))

    def _ended(self, done: Any, began: float, within_s: float) -> None:
        code, took_s = done.code(), time.monotonic() - began
        if code is Code.OK and took_s > within_s + 0.2:
            self.late.append(took_s)
        if code is Code.RESOURCE_EXHAUSTED:
            hints = [int(value) for key, value in done.trailing_metadata() if key == PUSHBACK]
            self.hints_ms += hints
            self.without_hint += not hints
        self.codes[code] += 1
        self.open -= 1


def memory_bytes(teacher: Teacher) -> int:
    process = psutil.Process(teacher.process.pid)
    return sum(one.memory_info().rss for one in [process, *process.children()])


@pytest.mark.parametrize(
    "seconds",
    [6, pytest.param(60, marks=[pytest.mark.nightly, pytest.mark.timeout(300)])],
)
def test_twice_the_load_is_answered_in_time_or_refused_and_memory_stays_flat(seconds: int) -> None:
    x = np.ones((2, 100_000), dtype=np.float32)
    data = tensors.encode_request(model_name="m", inputs={"x": x})
    with serving("--slots", "8", model=SLOW) as teacher:
        channel = open_channel(teacher.address, None)
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", None, None)
        load, held = Load(teacher), 0
        began, count = time.monotonic(), 2 * REQUESTS_PER_S * seconds
        for number in range(count):
            due = began + number / (2 * REQUESTS_PER_S)
            time.sleep(max(0.0, due - time.monotonic()))  # the load is a rate
            load.send(call, data, number)
            if number == count // 3:
                held = memory_bytes(teacher)
        wait_for(lambda: load.open == 0)
        grown = memory_bytes(teacher) - held

        codes = load.codes
        assert set(codes) <= {Code.OK, Code.RESOURCE_EXHAUSTED, Code.DEADLINE_EXCEEDED}, codes
        assert codes[Code.OK] >= 0.6 * REQUESTS_PER_S * seconds, codes
        assert codes[Code.RESOURCE_EXHAUSTED] > 0, codes
        assert codes[Code.DEADLINE_EXCEEDED] <= count / HURRIED, codes
        assert not load.late
        assert not load.without_hint
        assert 0 < min(load.hints_ms) <= max(load.hints_ms) <= 1000 * ANSWER_S
        assert grown < LEAK_BYTES, f"{grown >> 20} MiB more than at a third of the time"
        # It serves on as if nothing had been.
        wait_for(lambda: teacher.infer({"x": x[:, :4]}) is not None)
        channel.close()

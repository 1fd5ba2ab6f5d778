"""A model that is a numpy function, for tests of everything around a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Semaphore
from typing import Any

import numpy as np

from edl.proto.arena import Arena, Array
from edl.proto.datatypes import TensorSpec
from edl.runtime.errors import RetryableError
from edl.teacher.backends import Finish, ModelSpec
from edl.teacher.predictor_jobs import PredictorReady, RequestLabels
from edl.teacher.request import BatchRequest, RequestedOutput, encode_outputs
from edl.tests.waiting import DEADLINE_S

SPEC = ModelSpec(
    platform="fake",
    inputs=(TensorSpec("x", "FP32", (-1, 4)),),
    outputs=(TensorSpec("sum", "FP32", (-1,)), TensorSpec("double", "FP32", (-1, 4))),
    content_id="c0ffee",
    numerics=("fake-1", "fp32"),
)


Function = Callable[[Mapping[str, Array]], dict[str, Array]]


def double_and_sum(inputs: Mapping[str, Array]) -> dict[str, Array]:
    x = inputs["x"]
    with np.errstate(all="ignore"):  # whatever comes, a network would not warn either
        return {"sum": x.sum(axis=1), "double": x * 2}


class FakeBackend:
    """Runs `function`; counts the rows of each run."""

    def __init__(self, function: Function = double_and_sum, spec: ModelSpec = SPEC) -> None:
        self.spec = spec
        self.function = function
        self.runs: list[int] = []

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.runs.append(len(next(iter(inputs.values()))))
        return self.function(inputs)


class FakeLabeller:
    """A pool with its batcher, in this process; `before` is called in each request's thread."""

    def __init__(self) -> None:
        self.ready = True
        self.before: Callable[[], None] = lambda: None
        self.backend = FakeBackend()
        self.deadlines_s: list[float] = []  # of the requests that came
        self.released = 0
        self.inputs = Arena.create()
        self._threads = ThreadPoolExecutor(64, "fake")

    def require_loaded(self) -> PredictorReady:
        if not self.ready:
            raise RetryableError("the model is loading")
        return PredictorReady(self.backend.spec, 0.001, 8)

    def submit(self, request: BatchRequest) -> Future[RequestLabels]:
        self.deadlines_s.append(request.deadline_s)
        return self._threads.submit(self._label, request.inputs, request.outputs)

    def _label(
        self, inputs: Mapping[str, Array], outputs: Sequence[RequestedOutput]
    ) -> RequestLabels:
        self.before()
        every = self.backend.run(inputs)
        return RequestLabels(encode_outputs(every, outputs), 0.004, self._release)

    def _release(self) -> None:
        self.released += 1

    def close(self) -> None:
        self._threads.shutdown(wait=False)
        self.inputs.close()


def array(*shape: int, dtype: Any = np.float32) -> Array:
    """Numbers that differ from each other."""
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


class FakeQueue(FakeBackend):
    """A device with a queue: a run ends when the test says so, and not in the thread that asks."""

    def __init__(self, function: Function = double_and_sum) -> None:
        super().__init__(function)
        self.ended = Semaphore(0)
        self.submitted: list[int] = []  # rows of the runs that were queued

    def submit(self, inputs: Mapping[str, Array]) -> Finish:
        self.submitted.append(len(next(iter(inputs.values()))))
        outputs = self.run(inputs)

        def finish() -> tuple[dict[str, Array], float]:
            assert self.ended.acquire(timeout=DEADLINE_S)
            return outputs, 0.25

        return finish

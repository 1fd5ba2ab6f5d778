"""The predictor's loop over a real channel and shared memory, and how it labels a batch."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.proto.arena import GROWTH_BYTES, Arena, Array
from edl.proto.channel import Channel, Message
from edl.proto.datatypes import TensorSpec
from edl.proto.forms import LabelForm, decode
from edl.runtime.errors import (
    BadAnswer,
    DeadlineExceeded,
    DeviceOutOfMemory,
    PredictorCrashed,
    RequestRefused,
    RetryableError,
)
from edl.teacher import predictor_jobs
from edl.teacher.backends import blocking_submit, run_in_micro_batches
from edl.teacher.backends.tensor_specs import example_batch
from edl.teacher.predictor import LoadedModel, PredictorLoop
from edl.teacher.predictor_jobs import (
    JobRequest,
    PredictorReady,
    RequestLabels,
    Result,
    outputs_to_text,
    submit_parts,
)
from edl.teacher.request import RequestedOutput, check_finite, encode_outputs
from edl.tests.teacher.fakes import SPEC, FakeBackend, FakeQueue, array, double_and_sum
from edl.tests.waiting import wait_until


class Bench:
    """The socket side's end, by hand; the predictor serves in a thread."""

    def __init__(self, backend: FakeBackend, *, kept: bool = False) -> None:
        self.channel, theirs = Channel.pair()
        self.inputs, self.outputs = Arena.create(), Arena.create()
        self._their_channel = Channel.attach(theirs)
        self.their_inputs = Arena.attach(os.dup(self.inputs.fd))
        self.their_outputs = Arena.attach(os.dup(self.outputs.fd))
        predictor = PredictorLoop(
            LoadedModel(backend, PredictorReady(backend.spec, 0.001, 8), kept),
            self._their_channel,
            self.their_inputs,
            self.their_outputs,
        )
        self.lost: RetryableError | None = None
        self.ready: Message | None = None
        self._thread = threading.Thread(target=self._serve, args=[predictor])
        self._thread.start()

    def _serve(self, predictor: PredictorLoop) -> None:
        try:
            predictor.serve()
        except RetryableError as error:
            self.lost = error

    def ask(self, number: int, x: Array, output: str | RequestedOutput) -> Message:
        wanted = output if isinstance(output, RequestedOutput) else RequestedOutput(output)
        self.submit(number, x, JobRequest(len(x), (wanted,)))
        (told,) = self.done(number)
        return told

    def submit(self, number: int, x: Array, *parts: JobRequest) -> None:
        """Send a job without waiting for its labels."""
        refs = {"x": self.inputs.put([x]).arrays[0]}
        self.send(number, refs, parts or [JobRequest(len(x), (RequestedOutput("double"),))])

    def send(
        self,
        number: int,
        refs: Mapping[str, Any],
        parts: Sequence[JobRequest],
        free: Sequence[int] = (),
    ) -> None:
        told = [(part.samples, outputs_to_text(part.outputs), part.deadline_s) for part in parts]
        assert self.channel.send("job", id=number, at_s=0.0, inputs=refs, parts=told, free=free)

    def done(self, number: int) -> list[Message]:
        for message in self.channel:
            if message["kind"] != "ready":
                break
            self.ready = message
        assert (message["kind"], message["id"]) == ("done", number)
        assert isinstance(message["results"], list)
        return message["results"]

    def labels(self, message: Message) -> dict[str, Array]:
        return predictor_jobs.arrays_at(message["outputs"], self.outputs)

    def close(self) -> None:
        self.channel.close()
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._their_channel.close()
        for arena in (self.inputs, self.outputs, self.their_inputs, self.their_outputs):
            arena.close()


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
def bench(backend: FakeBackend) -> Iterator[Bench]:
    with closing(Bench(backend)) as bench:
        yield bench


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RequestRefused("no such word"), RequestRefused),
        (RetryableError("cannot identify image file"), PredictorCrashed),
        (MemoryError("no room"), PredictorCrashed),
        (KeyError("a bug of ours"), PredictorCrashed),
    ],
)
def test_a_failed_job_costs_no_other(
    bench: Bench, backend: FakeBackend, error: Exception, expected: type[Exception]
) -> None:
    def fail(inputs: Any) -> dict[str, Array]:
        if len(inputs["x"]) == 2:
            raise error
        return double_and_sum(inputs)

    backend.function = fail
    failed = bench.ask(1, array(2, 4), "sum")
    with pytest.raises(expected, match=str(error)):
        raise predictor_jobs.error_of(failed)
    backend.function = double_and_sum
    assert "error" not in bench.ask(2, array(2, 4), "sum")
    assert bench.their_outputs.used_bytes == 64  # nothing of the failed job


@pytest.mark.parametrize("backend_class", [FakeBackend, FakeQueue])
@pytest.mark.parametrize("error", [RetryableError("launch failure"), MemoryError("none is left")])
def test_a_device_that_fails_on_an_example_is_lost(
    backend_class: type[FakeBackend], error: Exception
) -> None:
    """As CUDA is after some errors: the process has to start anew."""

    def fail(inputs: Mapping[str, Array]) -> dict[str, Array]:
        raise error

    with closing(Bench(backend_class(fail))) as bench:
        told = bench.ask(1, array(2, 4), "sum")
        assert told["error"] == "RetryableError"
        assert told["message"].endswith(str(error))
        wait_until(lambda: str(bench.lost).endswith(str(error)))


def test_outputs_are_encoded_in_the_process(bench: Bench) -> None:
    x, form = array(20, 4) / 10, LabelForm(None, 2)
    labels = bench.labels(bench.ask(1, x, RequestedOutput("double", form)))
    assert list(labels) == ["double.values", "double.indices", "double.tail"]
    dense = decode("double", labels, form, form.parameters(4))
    np.testing.assert_allclose(dense[:, 2:], 2 * x[:, 2:], rtol=1e-3)
    labels = bench.labels(bench.ask(2, x, RequestedOutput("sum", LabelForm("bfloat16"))))
    assert labels["sum"].dtype.name == "bfloat16"


def test_large_batches_grow_the_memory(bench: Bench) -> None:
    x = array(64, GROWTH_BYTES // 128) % 1000
    assert x.nbytes > GROWTH_BYTES
    labels = bench.labels(bench.ask(1, x, "double"))
    np.testing.assert_array_equal(labels["double"], x * 2)
    assert bench.their_outputs.size_bytes > GROWTH_BYTES


def test_requests_of_a_job_have_their_own_rows(bench: Bench, backend: FakeBackend) -> None:
    x = array(21, 4)
    bench.submit(
        1,
        x,
        JobRequest(7, (RequestedOutput("sum"),)),
        JobRequest(14, (RequestedOutput("double"), RequestedOutput("sum"))),
    )
    first, second = bench.done(1)
    np.testing.assert_array_equal(bench.labels(first)["sum"], x[:7].sum(axis=1))
    assert list(bench.labels(second)) == ["double", "sum"]
    np.testing.assert_array_equal(bench.labels(second)["double"], x[7:] * 2)
    assert backend.runs == [8, 8, 5]
    bench.send(2, {}, [], free=[first["record"]])
    assert bench.done(2) == []
    np.testing.assert_array_equal(bench.labels(second)["sum"], x[7:].sum(axis=1))
    assert 0 < first["device_seconds"] == pytest.approx(second["device_seconds"] / 2)


def test_a_job_with_unreadable_inputs_costs_no_other(bench: Bench) -> None:
    bench.send(1, {"x": ["<f4", [1 << 40, 4], 0]}, [JobRequest(2, (RequestedOutput("sum"),))])
    (told,) = bench.done(1)
    with pytest.raises(RetryableError, match="the job was lost"):
        raise predictor_jobs.error_of(told)
    assert "error" not in bench.ask(2, array(2, 4), "sum")


def with_room_for(rows: int) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """A model whose device has memory for so many rows."""

    def label(inputs: Mapping[str, Array]) -> dict[str, Array]:
        if len(inputs["x"]) > rows:
            raise DeviceOutOfMemory("CUDA out of memory")
        return double_and_sum(inputs)

    return label


def test_a_job_without_memory_reduces_the_micro_batch(bench: Bench, backend: FakeBackend) -> None:
    backend.function = with_room_for(3)
    x = array(11, 4)
    with pytest.raises(DeviceOutOfMemory):
        raise predictor_jobs.error_of(bench.ask(1, x, "double"))
    assert bench.ready is not None
    assert bench.ready["micro_batch"] == 2
    assert bench.ready["spec"]["numerics"] == [*SPEC.numerics, "micro-batch=2"]
    bench.ready = None
    np.testing.assert_array_equal(bench.labels(bench.ask(2, x, "double"))["double"], x * 2)
    assert bench.ready is None


def works_on_an_example(inputs: Mapping[str, Array]) -> dict[str, Array]:
    x = inputs["x"]
    if not np.array_equal(x, example_batch(SPEC.inputs, len(x))["x"]):
        raise DeviceOutOfMemory("CUDA out of memory")
    return double_and_sum(inputs)


FIXED = replace(SPEC, inputs=(TensorSpec("x", "FP32", (8, 4)),))


@pytest.mark.parametrize(
    ("backend", "kept", "error"),
    [
        (FakeBackend(works_on_an_example), False, "PredictorCrashed"),
        (FakeBackend(works_on_an_example, FIXED), False, "PredictorCrashed"),
        (FakeBackend(with_room_for(3)), True, "PredictorCrashed"),
        (FakeBackend(Mock(side_effect=[DeviceOutOfMemory, {}, {}])), True, "DeviceOutOfMemory"),
    ],
)
def test_a_job_is_to_blame_unless_memory_is_free_again(
    backend: FakeBackend, kept: bool, error: str
) -> None:
    with closing(Bench(backend, kept=kept)) as bench:
        assert bench.ask(1, array(8, 4), "sum")["error"] == error
        assert bench.ready is None


@pytest.fixture
def queue() -> FakeQueue:
    return FakeQueue()


@pytest.fixture
def queued(queue: FakeQueue) -> Iterator[Bench]:
    with closing(Bench(queue)) as bench:
        yield bench
        queue.ended.release(100)


def test_a_device_with_a_queue_has_its_next_job_early(queued: Bench, queue: FakeQueue) -> None:
    first, second = array(3, 4), array(2, 4) + 1
    queued.submit(1, first)
    queued.submit(2, second)
    wait_until(lambda: queue.submitted == [3, 2])  # and none of them has ended
    queue.ended.release(2)
    for number, x in ((1, first), (2, second)):
        (told,) = queued.done(number)
        np.testing.assert_array_equal(queued.labels(told)["double"], x * 2)
        assert told["device_seconds"] == 0.25  # as the device says


def test_two_queued_jobs_without_memory_halve_once(queued: Bench, queue: FakeQueue) -> None:
    queued.submit(1, array(2, 4))  # what comes behind it is not looked at before it has ended
    queue.function = with_room_for(4)
    for number in (2, 3):
        queued.submit(number, array(8, 4))
    wait_until(lambda: queue.submitted == [2, 8, 8])
    queue.ended.release(100)
    assert "error" not in queued.done(1)[0]
    for number in (2, 3):
        assert queued.done(number)[0]["error"] == "DeviceOutOfMemory"
    assert (queued.ready or {})["micro_batch"] == 4


# --- the labels of a batch


def test_runs_of_different_shapes_are_a_bad_answer() -> None:
    """As of a function that pads to the longest sample of its run."""

    def padded(inputs: Mapping[str, Array]) -> dict[str, Array]:
        longest = int(inputs["x"].max())
        return {"y": np.zeros((len(inputs["x"]), longest), np.float32)}

    backend = FakeBackend(padded)
    x = np.array([3, 3, 5, 5], np.int64)
    with pytest.raises(BadAnswer, match=r"'y' has samples of shape \[3\] and of \[5\]") as caught:
        run_in_micro_batches(backend.run, {"x": x}, 2)
    assert caught.value.output == "y"
    assert run_in_micro_batches(backend.run, {"x": x}, 4)["y"].shape == (4, 5)


DOUBLE = (RequestedOutput("double"),)


def outputs(result: Result) -> Mapping[str, Array]:
    assert isinstance(result, RequestLabels), result
    return result.outputs


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=6))
def test_expired_requests_are_not_computed(requests: list[tuple[int, bool]]) -> None:
    backend, x = FakeBackend(), array(sum(samples for samples, _ in requests), 4)
    parts = [JobRequest(samples, DOUBLE, 2.0 if live else 1.0) for samples, live in requests]

    results = submit_parts(blocking_submit(backend.run), {"x": x}, parts, lambda: 1.0)()

    start = 0
    for (samples, live), result in zip(requests, results, strict=True):
        if live:
            np.testing.assert_array_equal(outputs(result)["double"], x[start : start + samples] * 2)
        else:
            assert isinstance(result, DeadlineExceeded)
        start += samples
    assert sum(backend.runs) == sum(samples for samples, live in requests if live)
    assert len(backend.runs) <= 1


def test_nan_fails_its_own_request_only() -> None:
    x = array(7, 4)
    x[3, 1] = np.nan
    parts = [
        JobRequest(2, DOUBLE),
        JobRequest(2, DOUBLE),
        JobRequest(3, (RequestedOutput("sum"), RequestedOutput("double"))),
    ]
    first, bad, last = submit_parts(blocking_submit(FakeBackend().run), {"x": x}, parts)()
    assert isinstance(bad, BadAnswer)
    np.testing.assert_array_equal(outputs(first)["double"], x[:2] * 2)
    assert list(outputs(last)) == ["sum", "double"]
    np.testing.assert_array_equal(outputs(last)["double"], x[4:] * 2)


def test_a_failed_joint_run_is_repeated_for_each() -> None:
    def picky(inputs: Mapping[str, Array]) -> dict[str, Array]:
        if (inputs["x"] == 13).any():
            raise RequestRefused("no such word")
        return double_and_sum(inputs)

    backend, x = FakeBackend(picky), array(6, 4)
    (alone,) = submit_parts(blocking_submit(backend.run), {"x": x}, [JobRequest(6, DOUBLE)])()
    assert isinstance(alone, RequestRefused)
    assert backend.runs == [6]
    backend.runs.clear()
    first, bad, last = submit_parts(
        blocking_submit(backend.run), {"x": x}, [JobRequest(2, DOUBLE)] * 3
    )()
    assert isinstance(bad, RequestRefused)
    np.testing.assert_array_equal(outputs(first)["double"], x[:2] * 2)
    np.testing.assert_array_equal(outputs(last)["double"], x[4:] * 2)
    assert backend.runs == [6, 2, 2, 2]


def test_parts_of_an_output_may_not_hide_another() -> None:
    outputs = {"y": array(2, 5), "y.values": array(2, 2)}
    wanted = [RequestedOutput("y", LabelForm(None, 2)), RequestedOutput("y.values")]
    for order in (wanted, wanted[::-1]):
        with pytest.raises(RequestRefused, match=r"two outputs would be sent as 'y\.values'"):
            encode_outputs(outputs, order)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_infinite_values_are_refused(dtype: type, value: float) -> None:
    labels: Array = np.zeros((4, 5), dtype=dtype)
    labels[2, 3] = value
    with pytest.raises(BadAnswer, match="'logits' holds 1 NaN or infinite values of 20") as caught:
        check_finite({"features": np.ones(3), "logits": labels})
    assert caught.value.output == "logits"

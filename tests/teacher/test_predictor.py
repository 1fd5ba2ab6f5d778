"""The predictor's loop over a real channel and shared memory, with a function for a model."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from edl.errors import RequestRefused, RetryableError
from edl.proto.arena import GROWTH_BYTES, Arena, Array
from edl.proto.channel import Channel, Message
from edl.proto.form_arrays import decode
from edl.proto.forms import Form
from edl.teacher import jobs
from edl.teacher.loading import Loaded
from edl.teacher.parts import Part
from edl.teacher.predictor import Predictor
from edl.teacher.wanted import Wanted
from edl.tests.teacher.fakes import FakeBackend, array, double_and_sum
from edl.tests.waiting import wait_until


class Bench:
    """The socket side's end, by hand; the predictor serves in a thread."""

    def __init__(self, backend: FakeBackend) -> None:
        self.channel, theirs = Channel.pair()
        self.inputs, self.outputs = Arena.create(), Arena.create()
        self._their_channel = Channel.attach(theirs)
        self.their_inputs = Arena.attach(os.dup(self.inputs.fd))
        self.their_outputs = Arena.attach(os.dup(self.outputs.fd))
        predictor = Predictor(
            Loaded(backend, 8, 0.001, backend.spec),
            self._their_channel,
            self.their_inputs,
            self.their_outputs,
        )
        self.lost: RetryableError | None = None
        self._thread = threading.Thread(target=self._serve, args=[predictor])
        self._thread.start()

    def _serve(self, predictor: Predictor) -> None:
        try:
            predictor.serve()
        except RetryableError as error:
            self.lost = error

    def ask(self, number: int, x: Array, output: str | Wanted) -> Message:
        wanted = output if isinstance(output, Wanted) else Wanted(output)
        record = self.inputs.put([x])
        refs = jobs.refs_to_json({"x": x}, record.arrays)
        (told,) = self.ask_for_parts(number, refs, [Part(len(x), (wanted,))])
        self.inputs.free(record.offset)
        return told

    def ask_for_parts(
        self, number: int, refs: Mapping[str, Any], parts: Sequence[Part]
    ) -> list[Message]:
        told = [part.to_json() for part in parts]
        assert self.channel.send("job", id=number, at_s=0.0, inputs=refs, parts=told)
        message = self.channel.receive()
        assert message is not None
        assert (message["kind"], message["id"]) == ("done", number)
        assert isinstance(message["results"], list)
        return message["results"]

    def labels(self, message: Message) -> dict[str, Array]:
        return jobs.arrays_at(message["outputs"], self.outputs)

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
    bench = Bench(backend)
    yield bench
    bench.close()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RequestRefused("no such word"), RequestRefused),
        (RetryableError("device lost"), RetryableError),
        (MemoryError("no room"), RetryableError),
        (KeyError("a bug of ours"), RetryableError),
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
        raise jobs.error_of(failed)
    backend.function = double_and_sum
    assert "error" not in bench.ask(2, array(2, 4), "sum")
    assert bench.their_outputs.used_bytes == 64  # nothing of the failed job


def test_a_device_that_fails_on_an_example_is_lost(bench: Bench, backend: FakeBackend) -> None:
    """As CUDA is after some errors: the process has to start anew."""

    def fail(inputs: Any) -> dict[str, Array]:
        raise RetryableError("unspecified launch failure")

    backend.function = fail
    failed = bench.ask(1, array(2, 4), "sum")
    with pytest.raises(RetryableError, match="launch failure"):
        raise jobs.error_of(failed)
    wait_until(lambda: bench.lost is not None)
    assert "launch failure" in str(bench.lost)


def test_outputs_are_encoded_in_the_process(bench: Bench) -> None:
    x, form = array(20, 4) / 10, Form(None, 2)
    labels = bench.labels(bench.ask(1, x, Wanted("double", form)))
    assert list(labels) == ["double.values", "double.indices", "double.tail"]
    dense = decode("double", labels, form, form.parameters(4))
    np.testing.assert_allclose(dense[:, 2:], 2 * x[:, 2:], rtol=1e-3)
    labels = bench.labels(bench.ask(2, x, Wanted("sum", Form("bfloat16"))))
    assert labels["sum"].dtype.name == "bfloat16"


def test_large_batches_grow_the_memory(bench: Bench) -> None:
    x = array(64, GROWTH_BYTES // 128) % 1000
    assert x.nbytes > GROWTH_BYTES
    labels = bench.labels(bench.ask(1, x, "double"))
    np.testing.assert_array_equal(labels["double"], x * 2)
    assert bench.their_outputs.size_bytes > GROWTH_BYTES


def test_requests_of_a_job_have_their_own_rows(bench: Bench, backend: FakeBackend) -> None:
    x = array(21, 4)
    record = bench.inputs.put([x])
    parts = [Part(7, (Wanted("sum"),)), Part(14, (Wanted("double"), Wanted("sum")))]
    first, second = bench.ask_for_parts(1, jobs.refs_to_json({"x": x}, record.arrays), parts)
    np.testing.assert_array_equal(bench.labels(first)["sum"], x[:7].sum(axis=1))
    assert list(bench.labels(second)) == ["double", "sum"]
    np.testing.assert_array_equal(bench.labels(second)["double"], x[7:] * 2)
    assert backend.runs == [8, 8, 5]
    bench.channel.send("free", record=first["record"])
    np.testing.assert_array_equal(bench.labels(second)["sum"], x[7:].sum(axis=1))
    assert 0 < first["device_seconds"] == pytest.approx(second["device_seconds"] / 2)


def test_a_job_with_unreadable_inputs_costs_no_other(bench: Bench) -> None:
    refs = {"x": ["<f4", [1 << 40, 4], 0]}
    (told,) = bench.ask_for_parts(1, refs, [Part(2, (Wanted("sum"),))])
    with pytest.raises(RetryableError, match="the job was lost"):
        raise jobs.error_of(told)
    assert "error" not in bench.ask(2, array(2, 4), "sum")

"""Labels of a batch: cut into micro-batches, joined, of several requests, in forms, finite."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.errors import BadAnswer, DeadlineExceeded, RequestRefused
from edl.proto.arena import Array
from edl.proto.forms import Form
from edl.teacher.backends import at_once
from edl.teacher.jobs import Answer, Part, Result, submit_parts
from edl.teacher.microbatch import run_in_micro_batches
from edl.teacher.request import Wanted, in_their_forms
from edl.teacher.self_test import check_finite
from edl.tests.teacher.fakes import FakeBackend, array, double_and_sum


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


DOUBLE = (Wanted("double"),)


def outputs(result: Result) -> Mapping[str, Array]:
    assert isinstance(result, Answer), result
    return result.outputs


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=6))
def test_expired_requests_are_not_computed(requests: list[tuple[int, bool]]) -> None:
    backend, x = FakeBackend(), array(sum(samples for samples, _ in requests), 4)
    parts = [Part(samples, DOUBLE, 2.0 if live else 1.0) for samples, live in requests]

    results = submit_parts(at_once(backend.run), {"x": x}, parts, lambda: 1.0)()

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
    parts = [Part(2, DOUBLE), Part(2, DOUBLE), Part(3, (Wanted("sum"), Wanted("double")))]
    first, bad, last = submit_parts(at_once(FakeBackend().run), {"x": x}, parts)()
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
    (alone,) = submit_parts(at_once(backend.run), {"x": x}, [Part(6, DOUBLE)])()
    assert isinstance(alone, RequestRefused)
    assert backend.runs == [6]
    backend.runs.clear()
    first, bad, last = submit_parts(at_once(backend.run), {"x": x}, [Part(2, DOUBLE)] * 3)()
    assert isinstance(bad, RequestRefused)
    np.testing.assert_array_equal(outputs(first)["double"], x[:2] * 2)
    np.testing.assert_array_equal(outputs(last)["double"], x[4:] * 2)
    assert backend.runs == [6, 2, 2, 2]


def test_parts_of_an_output_may_not_hide_another() -> None:
    outputs = {"y": array(2, 5), "y.values": array(2, 2)}
    wanted = [Wanted("y", Form(None, 2)), Wanted("y.values")]
    for order in (wanted, wanted[::-1]):
        with pytest.raises(RequestRefused, match=r"two outputs would travel as 'y\.values'"):
            in_their_forms(outputs, order)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_infinite_values_are_refused(dtype: type, value: float) -> None:
    labels: Array = np.zeros((4, 5), dtype=dtype)
    labels[2, 3] = value
    with pytest.raises(BadAnswer, match="'logits' holds 1 values of 20 that are NaN") as caught:
        check_finite({"features": np.ones(3), "logits": labels})
    assert caught.value.output == "logits"

"""Requests labelled in one go: each has its own rows, its own errors, its own deadline."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.errors import BadAnswer, DeadlineExceeded, RequestRefused, RetryableError
from edl.proto.arena import Array
from edl.teacher.parts import Labelled, Part, Result, label_parts
from edl.teacher.wanted import Wanted
from edl.tests.teacher.fakes import FakeBackend, array, double_and_sum

DOUBLE = (Wanted("double"),)


def outputs(result: Result) -> Mapping[str, Array]:
    assert isinstance(result, Labelled), result
    return result.outputs


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=6))
def test_each_live_request_has_its_own_rows_and_the_expired_are_not_computed(
    requests: list[tuple[int, bool]],
) -> None:
    backend, x = FakeBackend(), array(sum(samples for samples, _ in requests), 4)
    parts = [Part(samples, DOUBLE, 2.0 if live else 1.0) for samples, live in requests]

    results = label_parts(backend.run, {"x": x}, parts, lambda: 1.0)

    start = 0
    for (samples, live), result in zip(requests, results, strict=True):
        if live:
            np.testing.assert_array_equal(outputs(result)["double"], x[start : start + samples] * 2)
        else:
            assert isinstance(result, DeadlineExceeded)
        start += samples
    assert sum(backend.runs) == sum(samples for samples, live in requests if live)
    assert len(backend.runs) <= 1


def test_device_time_is_shared_by_samples() -> None:
    results = label_parts(FakeBackend().run, {"x": array(6, 4)}, [Part(2, DOUBLE), Part(4, DOUBLE)])
    first, second = (one.device_seconds for one in results if isinstance(one, Labelled))
    assert second == pytest.approx(2 * first)


def test_nan_of_one_is_not_the_others_fault() -> None:
    x = array(6, 4)
    x[3, 1] = np.nan
    parts = [Part(2, DOUBLE), Part(2, DOUBLE), Part(2, DOUBLE)]
    first, bad, last = label_parts(FakeBackend().run, {"x": x}, parts)
    assert isinstance(bad, BadAnswer)
    np.testing.assert_array_equal(outputs(first)["double"], x[:2] * 2)
    np.testing.assert_array_equal(outputs(last)["double"], x[4:] * 2)


def test_where_the_joint_run_fails_each_is_run_alone() -> None:
    def picky(inputs: Mapping[str, Array]) -> dict[str, Array]:
        if (inputs["x"] == 13).any():
            raise RequestRefused("no such word")
        return double_and_sum(inputs)

    backend, x = FakeBackend(picky), array(6, 4)
    first, bad, last = label_parts(backend.run, {"x": x}, [Part(2, DOUBLE)] * 3)
    assert isinstance(bad, RequestRefused)
    np.testing.assert_array_equal(outputs(first)["double"], x[:2] * 2)
    np.testing.assert_array_equal(outputs(last)["double"], x[4:] * 2)
    assert backend.runs == [6, 2, 2, 2]


def test_the_error_of_a_single_request_is_its_own() -> None:
    def fail(inputs: Mapping[str, Array]) -> dict[str, Array]:
        raise RetryableError("device lost")

    backend = FakeBackend(fail)
    (result,) = label_parts(backend.run, {"x": array(2, 4)}, [Part(2, DOUBLE)])
    assert isinstance(result, RetryableError)
    assert backend.runs == [2]


def test_requests_may_want_different_outputs() -> None:
    parts = [Part(1, (Wanted("sum"), Wanted("double"))), Part(1, DOUBLE)]
    first, second = label_parts(FakeBackend().run, {"x": array(2, 4)}, parts)
    assert (list(outputs(first)), list(outputs(second))) == (["sum", "double"], ["double"])


@pytest.mark.parametrize("deadline_s", [12.5, float("inf")])
def test_a_part_survives_its_message(deadline_s: float) -> None:
    part = Part(3, DOUBLE, deadline_s)
    assert Part.from_json(part.to_json()) == part

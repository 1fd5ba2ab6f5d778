"""A batch cut into runs and joined equals the batch, for every size of both."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.errors import BadAnswer
from edl.proto.arena import Array
from edl.teacher.microbatch import run_in_micro_batches
from edl.tests.teacher.fakes import FakeBackend, array


@given(st.integers(1, 40), st.integers(1, 12))
def test_every_row_is_labelled_in_its_place(rows: int, micro_batch: int) -> None:
    backend, x = FakeBackend(), array(rows, 4)

    outputs = run_in_micro_batches(backend.run, {"x": x}, micro_batch)

    assert list(outputs) == ["sum", "double"]
    np.testing.assert_array_equal(outputs["sum"], x.sum(axis=1))
    np.testing.assert_array_equal(outputs["double"], x * 2)
    assert sum(backend.runs) == rows
    assert all(size == micro_batch for size in backend.runs[:-1])
    assert 1 <= backend.runs[-1] <= micro_batch


def test_all_inputs_are_cut_alike() -> None:
    def pairs(inputs: object) -> dict[str, np.ndarray]:
        assert isinstance(inputs, dict)
        return {"sum": inputs["a"] + inputs["b"]}

    a, b = array(7), array(7) * 10
    outputs = run_in_micro_batches(pairs, {"a": a, "b": b}, 3)
    np.testing.assert_array_equal(outputs["sum"], a + b)


@pytest.mark.parametrize("shape", [(), (1, 3)])
def test_an_output_without_the_batch_is_no_answer(shape: tuple[int, ...]) -> None:
    backend = FakeBackend(lambda inputs: {"mean": np.zeros(shape)})
    with pytest.raises(BadAnswer, match=r"'mean'.*first dimension must be the batch"):
        run_in_micro_batches(backend.run, {"x": array(4, 4)}, 2)


def test_runs_that_give_other_shapes_are_no_answer() -> None:
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

"""Inputs that lie in several pieces: joined by the message, and by nothing before it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.errors import WireError
from edl.proto.arena import Array
from edl.proto.stacked import Stacked, all_whole, pieces_of, whole
from edl.proto.tensors import decode_request, encode_request

X = np.arange(24, dtype=np.float32).reshape(6, 4)


@given(st.lists(st.integers(0, 6), max_size=5), st.sampled_from(["<f4", ">f4", "<i8", "|u1"]))
def test_pieces_travel_as_the_whole_would(cuts: list[int], dtype: str) -> None:
    array = X.astype(dtype)
    edges = [0, *sorted(cuts), 6]
    pieces = tuple(array[a:b] for a, b in pairwise(edges))
    stacked = Stacked(pieces)
    assert (stacked.dtype, stacked.shape, stacked.ndim) == (array.dtype, array.shape, 2)
    assert stacked.nbytes == array.nbytes
    joined = encode_request(model_name="m", inputs={"x": stacked, "y": X})
    assert joined == encode_request(model_name="m", inputs={"x": array, "y": X})
    np.testing.assert_array_equal(decode_request(joined).inputs["x"], array)
    np.testing.assert_array_equal(whole(stacked), array)


def test_one_piece_is_never_copied() -> None:
    assert whole(X) is X
    assert whole(Stacked((X,))) is X
    assert pieces_of(X) == (X,)
    assert all_whole({"x": X})["x"] is X


@pytest.mark.parametrize(
    "pieces",
    [
        (),
        (X, X[:, :2]),
        (X, X.astype(np.float64)),
        (np.float32(1).reshape(()),),
    ],
)
def test_what_does_not_go_together_is_refused(pieces: tuple[Array, ...]) -> None:
    with pytest.raises(WireError, match="cannot be stacked"):
        Stacked(pieces)

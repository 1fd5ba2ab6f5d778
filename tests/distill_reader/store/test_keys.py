"""Keys: the same sample has the same one wherever it stands, and nothing else has it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.distill_reader.store.keys import keys_of
from edl.distill_reader.store.rows import Content
from edl.proto.datatypes import Array

C = Content("content", "numerics")
IMAGES = np.random.default_rng(0).integers(0, 256, (6, 3, 8, 8), np.uint8)


def one(arrays: dict[str, Array], content: Content = C, ids: tuple[Array, ...] = ()) -> bytes:
    (key,) = keys_of(content, arrays, 0, 1, ids)
    return key


@given(st.permutations(range(6)), st.integers(0, 5), st.integers(0, 5))
def test_a_sample_has_its_key_in_whatever_batch_it_comes(
    order: list[int], start: int, length: int
) -> None:
    stop = min(6, start + length)
    told = keys_of(C, {"x": IMAGES}, 0, 6)
    shuffled = IMAGES[order]
    assert keys_of(C, {"x": shuffled}, start, stop) == [told[place] for place in order[start:stop]]
    strided = np.asfortranarray(shuffled)
    assert keys_of(C, {"x": strided}, start, stop) == [told[place] for place in order[start:stop]]


def test_names_dtypes_shapes_bytes_and_the_model_tell_samples_apart() -> None:
    x = np.zeros((1, 4), np.float32)
    other_bytes = x.copy()
    other_bytes[0, 3] = 1
    keys = [
        one({"x": x}),
        one({"y": x}),
        one({"x": x.astype(np.int32)}),
        one({"x": x.reshape(1, 2, 2)}),
        one({"x": np.zeros((1, 5), np.float32)}),
        one({"x": other_bytes}),
        one({"x": x, "y": x}),
        one({"x": x.astype(ml_dtypes.bfloat16)}),
        one({"x": x}, Content("other", "numerics")),
        one({"x": x}, Content("content", "")),
        one({"x": x}, ids=(x,)),
    ]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 16 for key in keys)


def test_what_stands_at_the_edge_of_two_arrays_counts() -> None:
    a, b = np.array([[1, 2]], np.uint8), np.array([[3]], np.uint8)
    c, d = np.array([[1]], np.uint8), np.array([[2, 3]], np.uint8)
    assert one({"x": a, "y": b}) != one({"x": c, "y": d})


def test_the_same_bytes_of_another_byte_order_are_other_numbers() -> None:
    """And the same numbers are the same sample: teachers get them in one order."""
    one_big = np.array([[1]], ">i4")
    assert one_big.tobytes() == np.array([[1 << 24]], "<i4").tobytes()
    assert one({"x": one_big}) != one({"x": np.array([[1 << 24]], "<i4")})
    assert one({"x": one_big}) == one({"x": np.array([[1]], "<i4")})
    assert one({"x": one_big}, ids=(one_big,)) == one({"x": one_big}, ids=(np.array([[1]], "<i4"),))


def test_texts_are_told_apart_where_one_ends_and_the_next_begins() -> None:
    def texts(*words: bytes) -> dict[str, Array]:
        return {f"text {place}": np.array([word]) for place, word in enumerate(words)}

    assert one(texts(b"ab", b"cd")) == one(texts(b"ab", b"cd"))
    assert one(texts(b"ab", b"cd")) != one(texts(b"abc", b"d"))


def test_the_order_of_names_does_not_count() -> None:
    a, b = np.array([1.0], np.float32), np.array([2.0], np.float32)
    assert one({"x": a, "y": b}) == one({"y": b, "x": a})


def test_with_ids_the_bytes_do_not_count_and_shapes_do() -> None:
    ids = (np.array([7]), np.array([3], np.int32))
    dark, light = np.zeros((1, 4), np.float32), np.ones((1, 4), np.float32)
    assert one({"x": dark}, ids=ids) == one({"x": light}, ids=ids)
    assert one({"x": dark}, ids=ids) != one({"x": dark}, ids=(ids[0], ids[1] + 1))
    assert one({"x": dark}, ids=ids) != one({"x": np.zeros((1, 5), np.float32)}, ids=ids)


@pytest.mark.parametrize("shape", [(3,), (3, 0), (3, 1)])
def test_rows_of_any_size(shape: tuple[int, ...]) -> None:
    assert len(keys_of(C, {"x": np.zeros(shape, np.float32)}, 0, 3)) == 3


def test_a_key_stays_what_it_is_from_version_to_version() -> None:
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    assert one({"x": x}).hex() == "91e542a5cf7804343a2ead629e3b0958"

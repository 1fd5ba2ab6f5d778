"""Arrays as .npy files: what goes in comes out, and nothing is ever unpickled."""

from __future__ import annotations

import contextlib
import io
import pickle
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edl.errors import WireError
from edl.proto.datatypes import Array
from edl.proto.paddle_serving import npy

NUMBERS = [np.dtype(name) for name in ("<f2", "<f4", "<f8", "<i1", "<i8", "<u1", "<u4", "?")]


@given(
    st.sampled_from(NUMBERS).flatmap(
        lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0))
    ),
    st.booleans(),
)
def test_what_is_written_is_read(array: Array, by_columns: bool) -> None:
    given = np.asfortranarray(array) if by_columns else array
    read = npy.read(npy.write(given))
    assert read.dtype == given.dtype
    assert read.shape == given.shape
    assert read.tobytes() == given.tobytes()
    assert not read.flags.writeable


class Bomb:
    """Raises as soon as somebody unpickles it."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("it was unpickled",))


def test_pickled_objects_are_refused_unread() -> None:
    file = io.BytesIO()
    np.save(file, np.array([Bomb()], dtype=object), allow_pickle=True)
    with pytest.raises(WireError, match="nothing is ever unpickled"):
        npy.read(file.getvalue())
    with pytest.raises(WireError, match=r"no \.npy file"):
        npy.read(pickle.dumps(Bomb()))


def saved(array: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


WHOLE = saved(np.arange(6, dtype=np.float32).reshape(2, 3))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        WHOLE[:9],
        WHOLE[:60],
        b"\x93NUMPY\x09\x00" + WHOLE[8:],
        WHOLE.replace(b"(2, 3)", b"(2,-3)"),
        WHOLE.replace(b"(2, 3)", b"('a',)"),
        WHOLE.replace(b"'<f4'", b"'|O8'"),
        WHOLE.replace(b"'<f4'", b"'>f4'"),
        b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31) + WHOLE[10:],
    ],
    ids=["empty", "short", "header", "version", "negative", "text", "objects", "order", "long"],
)
def test_what_is_no_file_of_numbers_is_refused(raw: bytes) -> None:
    with pytest.raises(WireError):
        npy.read(raw)


@pytest.mark.parametrize("raw", [WHOLE[:-1], WHOLE + b"\0", WHOLE.replace(b"(2, 3)", b"(2, 9)")])
def test_more_or_less_than_the_shape_says_is_refused(raw: bytes) -> None:
    with pytest.raises(WireError, match="needs"):
        npy.read(raw)


@given(st.binary(max_size=200), st.integers(0, len(WHOLE)))
def test_no_bytes_do_more_than_be_refused(noise: bytes, at: int) -> None:
    with contextlib.suppress(WireError):
        npy.read(WHOLE[:at] + noise + WHOLE[at + len(noise) :])


@pytest.mark.parametrize(
    "array", [np.array([b"a"], object), np.array(["a"]), np.zeros(2, ml_dtypes.bfloat16)]
)
def test_what_is_no_number_there_is_not_sent(array: Array) -> None:
    with pytest.raises(WireError, match="cannot be sent to Paddle Serving"):
        npy.write(array)

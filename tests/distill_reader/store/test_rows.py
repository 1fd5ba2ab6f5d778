"""Rows: what is packed is what is unpacked, and the text of a layout says all of it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edl.distill_reader.store.richness import layout_of
from edl.distill_reader.store.rows import Content, Entry, Layout, Piece, pack, unpack
from edl.proto.datatypes import Array
from edl.proto.forms import Form

DTYPES = [np.float32, np.float16, np.float64, np.int64, np.uint8, np.bool_, ml_dtypes.bfloat16]
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
NAMES = st.text(max_size=8)
FORMS = st.sampled_from(
    [None, *(Form.parse(text, t) for text in ("float32", "topk:3") for t in (None, 0.1, 4.0))]
)
PIECES = st.builds(Piece, st.sampled_from(["FP32", "BF16", "INT64", "UINT8"]), SHAPES)
LAYOUTS = st.builds(
    Layout,
    st.builds(Content, NAMES, NAMES),
    st.lists(
        st.builds(
            Entry,
            NAMES,
            FORMS,
            st.none() | st.integers(4, 1000),
            st.lists(PIECES, max_size=3).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
    st.lists(PIECES, max_size=2).map(tuple),
    st.booleans(),
)


@given(LAYOUTS)
def test_the_text_of_a_layout_says_all_of_it(layout: Layout) -> None:
    assert Layout.from_text(layout.text) == layout
    assert Layout.from_text(layout.text).text == layout.text


@st.composite
def arrays(draw: st.DrawFn) -> list[Array]:
    count = draw(st.integers(1, 5))
    made = []
    for _ in range(draw(st.integers(1, 4))):
        shape = (count, *draw(SHAPES))
        seed = draw(st.integers(0, 2**32 - 1))
        values = np.random.default_rng(seed).integers(0, 100, shape)
        made.append(values.astype(draw(st.sampled_from(DTYPES))))
    return made


@given(arrays())
def test_what_is_packed_is_unpacked(made: list[Array]) -> None:
    outputs: dict[str, tuple[Form | None, int | None, list[Array]]] = {
        f"y{number}": (None, None, [array]) for number, array in enumerate(made)
    }
    rows = pack(layout_of(Content("c"), outputs), made)
    assert all(len(row.data) == row.layout.nbytes for row in rows)
    back = unpack(rows[::-1])
    for before, after in zip(made, back, strict=True):
        assert after.dtype == before.dtype
        np.testing.assert_array_equal(after, before[::-1])

"""Rows: what is packed is what is unpacked, and the text of a layout says all of it."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.distill_reader.store.rows import (
    ArraySpec,
    LabelRow,
    Layout,
    ModelId,
    StoredOutput,
    covers,
    derived,
    keys_of,
    layout_of,
    merged,
    pack,
    unpack,
)
from edl.proto.arena import Array
from edl.proto.forms import LabelForm, encode
from edl.runtime.errors import RequestRefused
from edl.tests.distill_reader.store.samples import inputs_of, logits_of, rows_in

DTYPES = [np.float32, np.float16, np.float64, np.int64, np.uint8, np.bool_, ml_dtypes.bfloat16]
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
NAMES = st.text(max_size=8)
SOME_FORMS = st.sampled_from(
    [None, *(LabelForm.parse(text, t) for text in ("float32", "topk:3") for t in (None, 0.1, 4.0))]
)
PIECES = st.builds(ArraySpec, st.sampled_from(["FP32", "BF16", "INT64", "UINT8"]), SHAPES)
LAYOUTS = st.builds(
    Layout,
    st.builds(ModelId, NAMES, NAMES),
    st.lists(
        st.builds(
            StoredOutput,
            NAMES,
            SOME_FORMS,
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
    outputs: dict[str, tuple[LabelForm | None, int | None, list[Array]]] = {
        f"y{number}": (None, None, [array]) for number, array in enumerate(made)
    }
    rows = pack(layout_of(ModelId("c"), outputs), made)
    assert all(len(row.data) == row.layout.nbytes for row in rows)
    back = unpack(rows[::-1])
    for before, after in zip(made, back, strict=True):
        assert after.dtype == before.dtype
        np.testing.assert_array_equal(after, before[::-1])


C = ModelId("content", "numerics")
IMAGES = np.random.default_rng(0).integers(0, 256, (6, 3, 8, 8), np.uint8)


def one(arrays: dict[str, Array], model_id: ModelId = C, ids: tuple[Array, ...] = ()) -> bytes:
    (key,) = keys_of(model_id, arrays, 0, 1, ids)
    return key


@given(st.permutations(range(6)), st.integers(0, 5), st.integers(0, 5))
def test_keys_are_the_same_in_every_batch(order: list[int], start: int, length: int) -> None:
    stop = min(6, start + length)
    told = keys_of(C, {"x": IMAGES}, 0, 6)
    shuffled = IMAGES[order]
    assert keys_of(C, {"x": shuffled}, start, stop) == [told[place] for place in order[start:stop]]
    strided = np.asfortranarray(shuffled)
    assert keys_of(C, {"x": strided}, start, stop) == [told[place] for place in order[start:stop]]


X = np.zeros((1, 4), np.float32)
IDS = (np.array([7]), np.array([3], np.int32))


def bytes_of(*values: int) -> Array:
    return np.array([values], np.uint8)


def texts(*words: bytes) -> dict[str, Array]:
    return {f"text {place}": np.array([word]) for place, word in enumerate(words)}


def test_names_dtypes_shapes_bytes_ids_and_the_model_tell_samples_apart() -> None:
    keys = [
        *(one({"x": x}) for x in (X, X + 1, X.reshape(1, 2, 2), X[:, :3], X[:, :0])),
        *(one({"x": X.astype(dtype)}) for dtype in (np.int32, ml_dtypes.bfloat16)),
        one({"y": X}),
        one({"x": X, "y": X}),
        *(one({"x": X}, ModelId(*names)) for names in (("other", "numerics"), ("content", ""))),
        *(one({"x": X}, ids=ids) for ids in ((X,), IDS, (IDS[0], IDS[1] + 1))),
        one({"x": X[:, :3]}, ids=IDS),
        one({"x": bytes_of(1, 2), "y": bytes_of(3)}),
        one({"x": bytes_of(1), "y": bytes_of(2, 3)}),
        *(one({"x": np.array([[number]], "<i4")}) for number in (1, 1 << 24)),
        one(texts(b"ab", b"cd")),
        one(texts(b"abc", b"d")),
    ]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 16 for key in keys)


def test_names_order_byte_order_and_bytes_beside_ids_do_not_count() -> None:
    big, little = np.array([[1]], ">i4"), np.array([[1]], "<i4")
    assert one({"x": X, "y": X + 1}) == one({"y": X + 1, "x": X})
    assert one({"x": big}) == one({"x": little})
    assert one({"x": big}, ids=(big,)) == one({"x": big}, ids=(little,))
    assert one({"x": X}, ids=IDS) == one({"x": X + 1}, ids=IDS)


def test_a_key_stays_what_it_is_from_version_to_version() -> None:
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    assert one({"x": x}).hex() == "91e542a5cf7804343a2ead629e3b0958"


TEXTS = ("float32", "bfloat16", "float16", "topk:5", "topk:20")
ALL: list[LabelForm | None] = [
    None,
    *(LabelForm.parse(text, t) for text in TEXTS for t in (None, 1.0, 4.0)),
]
FORMS = st.sampled_from(ALL)


ENTRIES = {form: rows_in(form, [0])[0].layout.entries[0] for form in ALL}
#: A form, and one that it covers.
COVERING = [(a, b) for a in ALL for b in ALL if covers(ENTRIES[a], b)]


def test_covering_is_a_partial_order() -> None:
    assert all(covers(ENTRIES[form], form) for form in ALL)
    for a, b in COVERING:
        assert a == b or not covers(ENTRIES[b], a)
        assert all(covers(ENTRIES[a], c) for other, c in COVERING if other == b)


@given(st.sampled_from(COVERING), st.lists(st.integers(0, 1000), min_size=1, max_size=4))
def test_derived_labels_equal(
    forms: tuple[LabelForm | None, LabelForm | None], numbers: list[int]
) -> None:
    kept, wanted = forms
    rows = rows_in(kept, numbers)
    made = derived(rows[0].layout.entries[0], unpack(rows), wanted)
    logits = logits_of(inputs_of(numbers))
    sent = {"logits": logits} if wanted is None else encode("logits", logits, wanted)
    assert list(made) == list(sent)
    for name, array in sent.items():
        assert made[name].dtype == array.dtype
        np.testing.assert_array_equal(made[name], array)


def test_the_forms_that_the_richest_covers() -> None:
    assert all(covers(ENTRIES[None], form) for form in ALL)
    assert sum(covers(ENTRIES[LabelForm.parse("float32")], form) for form in ALL) == len(ALL) - 1
    assert sum(covers(ENTRIES[LabelForm.parse("float32", 4.0)], form) for form in ALL) == len(TEXTS)
    assert sum(covers(ENTRIES[LabelForm.parse("topk:20")], form) for form in ALL) == 1


def test_integers_have_no_other_form() -> None:
    kept = StoredOutput("y", None, None, (ENTRIES[None].pieces[0]._replace(datatype="INT64"),))
    assert [form for form in ALL if covers(kept, form)] == [None]


def test_a_form_that_nobody_can_make_is_refused() -> None:
    rows = rows_in(None, [1])
    with pytest.raises(RequestRefused, match="leaves none out"):
        derived(rows[0].layout.entries[0], unpack(rows), LabelForm.parse("topk:50"))


def row_of(forms: Sequence[LabelForm | None]) -> LabelRow:
    (row,) = rows_in(forms[0], [3])
    for form in forms[1:]:
        (other,) = rows_in(form, [3])
        row = merged(row, other)
    return row


@given(st.lists(FORMS, min_size=1, max_size=4), st.lists(FORMS, min_size=1, max_size=4))
def test_merging_keeps_each_form_once(
    first: list[LabelForm | None], second: list[LabelForm | None]
) -> None:
    old, new = row_of(first), row_of(second)
    both = merged(old, new)
    assert len(both.data) == both.layout.nbytes
    entries = both.layout.entries
    for form in (*first, *second):
        assert any(covers(entry, form) for entry in entries)
    for place, entry in enumerate(entries):
        others = entries[:place] + entries[place + 1 :]
        assert not any(covers(other, entry.form) for other in others)
    assert merged(both, new) is both
    arrays = unpack([both])
    for entry in entries:
        some, arrays = arrays[: len(entry.pieces)], arrays[len(entry.pieces) :]
        (alone,) = rows_in(entry.form, [3])
        for kept, made in zip(some, unpack([alone]), strict=True):
            np.testing.assert_array_equal(kept, made)


def test_a_label_does_not_change_because_somebody_says_it_again() -> None:
    (old,) = rows_in(None, [3])
    (other,) = rows_in(None, [4])
    assert merged(old, other) is old


def test_outputs_stand_in_the_order_of_the_model_once_it_is_known() -> None:
    (first,) = rows_in(None, [3], output="b")
    partial = LabelRow(
        first.layout.__class__(first.layout.model_id, first.layout.entries), first.data
    )
    (a,) = rows_in(None, [3], output="a")
    entries = (*a.layout.entries, *first.layout.entries)
    whole = LabelRow(
        first.layout.__class__(a.layout.model_id, entries, (), True), a.data + first.data
    )
    both = merged(partial, whole)
    assert both.layout.outputs == ("a", "b")
    assert both.layout.whole
    assert both.data == whole.data

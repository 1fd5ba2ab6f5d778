"""Forms of outputs: their names, what travels, what is read from it, what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edl.proto.arena import Array
from edl.proto.forms import LabelForm, check_parts, decode, encode, kind_of, softmax, top_k
from edl.runtime.errors import RequestRefused, UsageError, WireError

TOP_3 = LabelForm(None, 3)


def logits(*shape: int) -> Array:
    """They are read-only: a model's own array stays as it is."""
    rows: Array = np.random.default_rng(0).normal(0, 3, shape).astype(np.float32)
    rows.flags.writeable = False
    return rows


def exact_softmax(rows: Array, temperature: float = 1.0) -> Array:
    wide = rows.astype(np.float64)
    exps: Array = np.exp((wide - wide.max(axis=-1, keepdims=True)) / temperature)
    exps /= exps.sum(axis=-1, keepdims=True)
    return exps


@pytest.mark.parametrize("text", ["float32", "bfloat16", "float16", "topk:1", "topk:20"])
@pytest.mark.parametrize("temperature", [None, 4.0])
def test_a_form_is_what_its_parameters_name(text: str, temperature: float | None) -> None:
    form = LabelForm.parse(text, temperature)
    assert form is not None
    assert str(form) == text
    assert LabelForm.from_parameters(form.parameters()) == form
    assert LabelForm.from_parameters({}, form.parameters()) == form
    assert LabelForm.from_parameters({"form": "float32"}, form.parameters()) == LabelForm("float32")
    assert LabelForm.from_parameters({}) is None
    assert LabelForm.from_parameters({"temperature": 3}) == LabelForm("float32", temperature=3.0)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"form": "float64"}, "there is no form 'float64': name one of float32, bfloat16"),
        *(({"form": f"topk:{k}"}, "no form") for k in ("0", "-3", "1" + "0" * 5000, "3.0", "٣")),
        ({"form": "x" * 5000}, "no form 'x{40}…'"),
        ({"form": True}, "is text"),
        ({"temperature": 0}, "above 0"),
        ({"temperature": float("inf")}, "finite"),
        ({"temperature": float("nan")}, "finite"),
        ({"temperature": 10**400}, "finite"),
        ({"temperature": True}, "is a number"),
    ],
)
def test_invalid_form_parameters_are_refused(parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        LabelForm.from_parameters(parameters)


@pytest.mark.parametrize(
    ("classes", "index"), [(4, "u1"), (256, "u1"), (257, "u2"), (65536, "u2"), (65537, "u4")]
)
def test_top_k_takes_the_smallest_dtypes_that_fit(classes: int, index: str) -> None:
    parts = encode("y", logits(2, classes), TOP_3)
    assert list(parts) == ["y.values", "y.indices", "y.tail"]
    assert [part.dtype.str for part in parts.values()] == ["<f2", np.dtype(index).str, "<f4"]
    assert [part.shape for part in parts.values()] == [(2, 3), (2, 3), (2,)]


def test_values_beyond_float16_travel_as_float32() -> None:
    rows = logits(2, 9).copy()
    rows[1, 4] = 1e6
    parts = encode("y", rows, TOP_3)
    assert parts["y.values"].dtype == np.float32
    assert decode("y", parts, TOP_3, TOP_3.parameters(9))[1, 4] == np.float32(1e6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("given_as", [np.float64, np.float32, np.float16])
def test_a_plain_form_is_the_same_output_in_another_dtype(dtype: Any, given_as: Any) -> None:
    rows = logits(3, 5).astype(given_as)
    form = LabelForm(dtype)
    parts = encode("y", rows, form)
    assert parts["y"].dtype.name == dtype
    dense = decode("y", parts, form, form.parameters())
    assert dense.dtype == np.float32
    np.testing.assert_allclose(dense, rows, rtol=2**-8)
    if dtype == "float32" and given_as is np.float32:
        assert np.shares_memory(dense, rows), "it is not copied"


@pytest.mark.parametrize(
    ("rows", "form", "kind", "words"),
    [
        (np.array([[7e4]], np.float32), LabelForm("float16"), "", "beyond the range of float16"),
        (np.array([[1e300, 0.0]]), LabelForm(None, 1), "", "beyond the range of float32"),
        (
            np.full((2, 3), 0.7),
            LabelForm(temperature=2.0),
            "other",
            "neither logits nor probabilities",
        ),
    ],
)
def test_unsuitable_values_are_refused(rows: Array, form: LabelForm, kind: Any, words: str) -> None:
    with pytest.raises(RequestRefused, match=words):
        encode("y", rows, form, kind)


@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(2, 12)),
        elements=st.sampled_from([-2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 3.0]),
    ),
    st.data(),
)
def test_of_equal_values_the_lower_class_goes_first(rows: Array, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, rows.shape[1] - 1))
    values, indices = top_k(rows, k)
    for row, got, places in zip(rows, values, indices, strict=True):
        expected = sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]
        assert places.tolist() == expected
        assert got.tolist() == row[expected].tolist()


def test_a_class_that_is_left_out_is_not_as_great_as_those_that_are_kept() -> None:
    rows = np.zeros((1, 11), np.float32)
    rows[0, 0] = -1e-7  # which float16 does not tell from 0
    form = LabelForm(None, 7)
    dense = decode("y", encode("y", rows, form), form, form.parameters(11))
    assert dense.argmax() == 1
    assert dense[0, 0] < 0.0
    equal = np.full((1, 4), 0.25, np.float32)
    form = LabelForm(None, 2, 1.0)
    dense = decode("y", encode("y", equal, form), form, form.parameters(4))
    assert (dense >= 0).all()
    assert dense.sum() == pytest.approx(1.0)


@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 3), st.integers(2, 30)),
        elements=st.floats(-60, 60, width=16),
    ),
    st.data(),
)
def test_kept_classes_keep_their_probability(rows: Array, data: st.DataObject) -> None:
    classes = rows.shape[1]
    form = LabelForm(None, data.draw(st.integers(1, classes - 1)))
    parts = encode("y", rows, form, "logits")  # which [0, 1] does not look like
    dense = decode("y", parts, form, form.parameters(classes))
    kept = parts["y.indices"].astype(int)
    truth = np.take_along_axis(exact_softmax(rows), kept, -1)
    got = np.take_along_axis(exact_softmax(dense), kept, -1)
    np.testing.assert_allclose(got, truth, rtol=1e-3, atol=1e-6)
    assert (dense.argmax(-1) == rows.argmax(-1)).all()
    rest = np.ones_like(dense, bool)
    np.put_along_axis(rest, kept, False, -1)
    for row, left_out in zip(dense, rest, strict=True):  # spread evenly
        assert len(set(row[left_out].tolist())) == 1


@pytest.mark.parametrize("row", [[-(2.0**-24)] * 14, [10.004, 10.003, 10.003]])
def test_rounding_does_not_move_the_greatest_class(row: list[float]) -> None:
    rows = np.array([row], np.float32)
    form = LabelForm(None, len(row) // 2)
    dense = decode("y", encode("y", rows, form), form, form.parameters(len(row)))
    assert dense.argmax(-1) == rows.argmax(-1) == 0


@pytest.mark.parametrize("temperature", [1e-50, 0.5, 1.0, 4.0])
def test_a_softmax_at_a_temperature_travels_as_probabilities(temperature: float) -> None:
    rows = logits(2, 6, 40)
    truth = exact_softmax(rows, temperature)
    whole = encode("y", rows, LabelForm("float32", temperature=temperature))["y"]
    np.testing.assert_allclose(whole, truth, rtol=1e-5)
    form = LabelForm(None, 5, temperature)
    parts = encode("y", rows, form)
    assert parts["y.tail"].shape == (2, 6)
    dense = decode("y", parts, form, form.parameters(40))
    assert dense.shape == rows.shape
    np.testing.assert_allclose(dense.sum(-1), 1.0, atol=2e-3)
    kept = parts["y.indices"].astype(int)
    np.testing.assert_allclose(
        np.take_along_axis(dense, kept, -1), np.take_along_axis(truth, kept, -1), rtol=1e-3
    )
    np.testing.assert_allclose(
        parts["y.tail"], 1 - np.take_along_axis(truth, kept, -1).sum(-1), atol=1e-5
    )


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_probabilities_are_brought_to_a_temperature_by_their_logarithm(temperature: float) -> None:
    rows = logits(6, 40)
    form = LabelForm("float32", temperature=temperature)
    given = exact_softmax(rows, 1.0).astype(np.float32)
    came = encode("y", given, form, "probabilities")["y"]
    np.testing.assert_allclose(came, exact_softmax(rows, temperature), rtol=1e-4)
    certain = np.eye(3, dtype=np.float32)
    assert encode("y", certain, form, "probabilities")["y"].argmax(-1).tolist() == [0, 1, 2]


def test_top_k_of_probabilities_are_logits() -> None:
    rows = logits(6, 40)
    given = exact_softmax(rows, 1.0).astype(np.float32)
    form = LabelForm(None, 5)
    parts = encode("y", given, form, "probabilities")
    events = np.concatenate([parts["y.values"], parts["y.tail"][..., np.newaxis]], axis=-1)
    kept = np.take_along_axis(given, parts["y.indices"].astype(int), -1)
    np.testing.assert_allclose(exact_softmax(events, 1.0)[..., :5], kept, rtol=5e-3)


def test_probabilities_that_were_rounded_to_16_bits_are_recognised_in_any_dtype() -> None:
    p = softmax(4 * np.random.default_rng(5).normal(size=(64, 1000)).astype(np.float32), 1.0)
    rounded = p.astype(ml_dtypes.bfloat16)
    assert kind_of([rounded]) == kind_of([rounded.astype(np.float32)]) == "probabilities"
    assert kind_of([p, p[:, :5]]) == "other", "its last dimension varies"


def test_a_softmax_of_great_logits_is_finite() -> None:
    great = np.array([[3e38, -3e38, 3e38]], np.float32)
    assert softmax(great, 0.5).tolist() == [[0.5, 0.0, 0.5]]
    dense = decode("y", encode("y", great, LabelForm(None, 1)), LabelForm(None, 1), {"classes": 3})
    assert np.isfinite(dense).all()


def parts_of(**other: Array) -> dict[str, Array]:
    parts = encode("y", logits(2, 9), TOP_3)
    return {**parts, **{f"y.{part}": array for part, array in other.items()}}


@pytest.mark.parametrize(
    ("parts", "classes"),
    [
        (parts_of(values=np.zeros((2, 4), "f2")), 9),
        (parts_of(values=np.zeros((2, 3), "i4")), 9),
        (parts_of(values=np.full((2, 3), 1e300)), 9),
        (parts_of(tail=np.full(2, 1e300)), 9),
        (parts_of(values=np.zeros(3, "f2")), 9),
        (parts_of(indices=np.zeros((2, 2), "u1")), 9),
        (parts_of(indices=np.array([[0, 1, 2]] * 2, "i8")), 9),
        (parts_of(indices=np.array([[0, 1, 9]] * 2, "u1")), 9),
        (parts_of(indices=np.array([[0, 1, 1]] * 2, "u1")), 9),
        (parts_of(tail=np.zeros(3, "f4")), 9),
        (parts_of(tail=np.zeros(2, "i4")), 9),
        *((parts_of(), classes) for classes in (3, 0, -1, "9", True, 257)),
        (parts_of(indices=np.array([[0, 1, 2]] * 2, "u4")), 1 << 31),
    ],
)
def test_contradictory_parts_are_refused(parts: dict[str, Array], classes: Any) -> None:
    with pytest.raises(WireError, match="parts that do not go together"):
        decode("y", parts, TOP_3, {"form": "topk:3", "classes": classes})


def test_a_dtype_of_another_form_and_a_negative_mass_are_refused() -> None:
    form = LabelForm("float32")
    with pytest.raises(WireError, match="is float64, but its parameters state float32"):
        decode("y", {"y": np.full((2, 9), 1e300)}, form, form.parameters())
    parts = parts_of(tail=np.array([0.1, -0.1], "f4"))
    with pytest.raises(WireError, match="negative"):
        check_parts("y", parts, LabelForm(None, 3, 1.0), {"classes": 9})

"""No answer is trusted blindly: each way to be wrong is caught."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.engine.answers import (
    ExpectedResponse,
    check_inputs_finite,
    checked_labels,
    device_seconds,
)
from edl.distill_reader.engine.teacher_requests import template_of
from edl.distill_reader.label_forms import LabelForms
from edl.proto.clients import LabelResponse, ModelDescription
from edl.proto.datatypes import TensorSpec
from edl.proto.forms import LabelForm, encode
from edl.runtime.errors import BadAnswer, RequestRefused, WireError, WrongInstance
from edl.scheduler.reader_core.events import Peer

EXPECTED = ExpectedResponse("t1", 7, "c", ("logits",))
LOGITS = np.zeros((2, 3), np.float32)
GOOD: dict[str, Any] = {"teacher_id": "t1", "incarnation": "7", "content_id": "c"}


def soft_labels(answer: LabelResponse, expected: ExpectedResponse) -> dict[str, Any]:
    return checked_labels(answer, expected, 2)


def answer(outputs: dict[str, Any], parameters: dict[str, Any] = GOOD) -> LabelResponse:
    return LabelResponse(outputs, parameters)


def test_good_answers_give_the_labels_asked_for_in_that_order() -> None:
    expected = replace(EXPECTED, outputs=("b", "a"))
    labels = soft_labels(answer({"a": LOGITS, "b": LOGITS, "c": LOGITS}), expected)
    assert list(labels) == ["b", "a"]
    whole = replace(EXPECTED, outputs=())
    assert list(soft_labels(answer({"a": LOGITS, "c": LOGITS}), whole)) == ["a", "c"]
    with pytest.raises(BadAnswer, match="no outputs"):
        soft_labels(answer({}), whole)


def test_the_only_output_of_a_foreign_server_may_have_a_name_of_its_own() -> None:
    foreign, its = replace(EXPECTED, foreign=True), answer({"output-0": LOGITS}, {})
    assert list(soft_labels(its, foreign)) == ["logits"]
    half = replace(foreign, forms=LabelForms.from_user({"logits": "float16"}, None, False))
    assert soft_labels(its, half)["logits"].dtype == np.float16
    for refused in (its, answer({"a": LOGITS, "b": LOGITS}, {}), answer({}, {})):
        with pytest.raises(BadAnswer, match="lacks 'logits'"):
            soft_labels(refused, EXPECTED if refused is its else foreign)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"teacher_id": "t2"}, WrongInstance),
        ({"incarnation": "8"}, WrongInstance),
        ({"content_id": "d"}, BadAnswer),
    ],
)
def test_other_instances_are_refused(said: dict[str, Any], error: type[Exception]) -> None:
    assert soft_labels(answer({"logits": LOGITS}, {}), EXPECTED), "foreign servers name none"
    with pytest.raises(error):
        soft_labels(answer({"logits": LOGITS}, {**GOOD, **said}), EXPECTED)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({}, "lacks"),
        ({"other": LOGITS}, "lacks 'logits', it has \\['other'\\]"),
        ({"logits": np.zeros((3, 3))}, "for a batch of 2"),
        ({"logits": np.float32(1).reshape(())}, "for a batch of 2"),
        ({"logits": np.array([[1.0], [np.nan]])}, "not finite"),
        ({"logits": np.array([[1.0], [np.inf]])}, "not finite"),
        ({"logits": np.array([[b"a"], [b"b"]], dtype=object)}, "BYTES"),
    ],
)
def test_labels_that_cannot_be_labels_are_not_taken(outputs: dict[str, Any], message: str) -> None:
    with pytest.raises(BadAnswer, match=message):
        soft_labels(answer(outputs), EXPECTED)


DECLARED = (TensorSpec("logits", "FP32", (-1, 3)), TensorSpec("hidden", "FP32", (-1, -1, 4)))
WHOLE = {"logits": LOGITS, "hidden": np.zeros((2, 9, 4), np.float32)}


@pytest.mark.parametrize("parameters", [GOOD, {}])
@pytest.mark.parametrize("fetches", [(), ("logits",)])
def test_outputs_fit_the_model(fetches: tuple[str, ...], parameters: dict[str, Any]) -> None:
    """A bit may flip in a name, and a shape of as many numbers is another shape."""
    config = ReaderConfig("s", teachers=("h:1",), fetches=fetches)
    peer, found = Peer("t1", "", "s", 7, "c"), ModelDescription((), DECLARED)
    expected = template_of(config, peer, found).expected
    assert list(soft_labels(answer(WHOLE, parameters), expected)) == [*(fetches or WHOLE)]
    for spoilt, words in (
        ({"logitr": LOGITS, "hidden": WHOLE["hidden"]}, "lacks 'logits'"),
        ({**WHOLE, "logits": LOGITS[:, :2]}, "declared as \\[-1, 3\\], but has the shape"),
    ):
        with pytest.raises(BadAnswer, match=words):
            soft_labels(answer(spoilt, parameters), expected)


def test_our_own_teachers_answer_in_the_dtype_that_they_declare() -> None:
    wide = {"logits": LOGITS.astype(np.float64)}
    expected = replace(EXPECTED, declared={spec.name: spec for spec in DECLARED})
    without_rows = replace(EXPECTED, declared={"logits": TensorSpec("logits", "FP32", (3,))})
    assert soft_labels(answer({"logits": LOGITS}, {}), without_rows), "a server leaves out the -1"
    with pytest.raises(BadAnswer, match="declared as FP32, but has the dtype float64"):
        soft_labels(answer(wide), expected)
    assert soft_labels(answer(wide, {}), expected)["logits"].dtype == np.float64
    form = LabelForm("float16")
    asked = answer({"logits": LOGITS.astype(np.float16)})
    said = replace(asked, output_parameters={"logits": form.parameters()})
    half = replace(expected, forms=LabelForms.from_user({"logits": "float16"}, None, False))
    assert soft_labels(said, half)["logits"].dtype == np.float16


@pytest.mark.parametrize(
    ("told", "believed"),
    [
        *((0.5, 0.5), (1e-9, 1e-9), (3, 2.0), (0, 2.0), (5e-324, 2.0), (-1.0, 2.0)),
        *(("0.5", 2.0), (float("nan"), 2.0), (True, 2.0)),
    ],
)
def test_device_time_is_within_the_time_of_the_request(told: Any, believed: float) -> None:
    assert device_seconds(told, 2.0) == believed
    shared = believed if told == believed else 1.0
    assert device_seconds(told, 2.0, 2) == shared, "with another request on the way"


def test_inputs_that_are_not_finite_are_named() -> None:
    fine = {"ids": np.array([1, 2]), "text": np.array([b"a"]), "x": LOGITS}
    check_inputs_finite(fine)
    with pytest.raises(RequestRefused, match="'y'"):
        check_inputs_finite({**fine, "y": np.array([np.inf], np.float16)})


# --- forms

ROWS = np.array([[1.0, 4.0, 2.0, -1.0], [0.0, 0.0, 5.0, 0.0]], np.float32)
FORM = LabelForm(None, 2)
IN_PARTS = {part: FORM.parameters(4) for part in FORM.parts("logits")}


def asked_for(
    form: str | None, temperature: float | None = None, expand: bool = True
) -> ExpectedResponse:
    return replace(EXPECTED, forms=LabelForms.from_user(form, temperature, expand))


def in_parts(**other: Any) -> LabelResponse:
    parts = encode("logits", ROWS, FORM)
    return replace(answer({**parts, **other}), output_parameters=IN_PARTS)


def test_labels_can_stay_in_parts_with_indices_that_frameworks_take() -> None:
    labels = soft_labels(in_parts(), asked_for("topk:2", expand=False))
    assert {name: array.dtype.name for name, array in labels.items()} == {
        "logits.values": "float32",
        "logits.indices": "int64",
        "logits.tail": "float32",
    }
    assert labels["logits.indices"].tolist() == [[1, 2], [2, 0]]
    half = soft_labels(answer({"logits": ROWS}), asked_for("float16", expand=False))
    assert half["logits"].dtype == np.float16


@pytest.mark.parametrize(
    ("form", "temperature"),
    [("topk:2", None), ("topk:2", 4.0), ("float16", None), ("bfloat16", 2.0), (None, 2.0)],
)
def test_servers_without_forms_label_equally(form: str | None, temperature: float | None) -> None:
    expected = asked_for(form, temperature)
    known = expected.forms.of("logits")
    assert known is not None
    said = dict.fromkeys(known.parts("logits"), known.parameters(4))
    ours = replace(answer(dict(encode("logits", ROWS, known))), output_parameters=said)
    foreign = answer({"logits": ROWS}, {})
    own_words = replace(foreign, output_parameters={"logits": {"form": "row-major"}})
    labels = soft_labels(ours, expected)["logits"]
    assert labels.dtype == np.float32
    for other in (foreign, own_words):
        np.testing.assert_array_equal(soft_labels(other, expected)["logits"], labels)


def test_probabilities_of_a_server_without_forms_are_seen_as_such() -> None:
    expected = asked_for(None, 4.0)
    powers = np.exp(ROWS - ROWS.max(axis=-1, keepdims=True))
    given = (powers / powers.sum(axis=-1, keepdims=True)).astype(np.float32)
    of_logits, of_probabilities = (
        soft_labels(answer({"logits": rows}, {}), expected)["logits"] for rows in (ROWS, given)
    )
    np.testing.assert_allclose(of_probabilities, of_logits, rtol=1e-3)


def test_each_output_has_the_form_that_was_asked_for_it() -> None:
    forms = LabelForms.from_user({"logits": "topk:2"}, {"other": 1.0}, True)
    both = answer({"logits": ROWS, "hidden": ROWS.astype("f8"), "other": ROWS})
    labels = soft_labels(both, replace(EXPECTED, outputs=(), forms=forms))
    assert list(labels) == ["logits", "hidden", "other"]
    assert labels["hidden"].dtype == np.float64  # as the model gives it
    np.testing.assert_allclose(labels["other"].sum(-1), 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (in_parts(**{"logits.tail": np.zeros(3, "f4")}), BadAnswer, "for a batch of 2"),
        (in_parts(**{"logits.tail": np.full(2, np.nan, "f4")}), BadAnswer, "not finite"),
        (in_parts(**{"logits.indices": np.full((2, 2), 9, "u1")}), WireError, "do not go together"),
        (replace(in_parts(), output_parameters={}), BadAnswer, "not marked as topk:2"),
        (
            replace(answer({"logits": ROWS}), output_parameters={"logits": FORM.parameters(4)}),
            BadAnswer,
            "has only one array",
        ),
        (answer({"logits.values": ROWS}), BadAnswer, "lacks 'logits'"),
        (answer({"logits": ROWS.astype("i8")}), RequestRefused, "is for floats"),
    ],
)
def test_parts_are_not_trusted_either(
    given: LabelResponse, error: type[Exception], words: str
) -> None:
    for expand in (True, False):
        with pytest.raises(error, match=words):
            soft_labels(given, asked_for("topk:2", expand=expand))


@pytest.mark.parametrize("expand", [True, False])
def test_an_output_has_the_dtype_that_it_states(expand: bool) -> None:
    half = {"logits": LabelForm("float16").parameters()}
    given = replace(answer({"logits": ROWS}), output_parameters=half)
    with pytest.raises(WireError, match="is float32, but its parameters state float16"):
        soft_labels(given, asked_for("float16", expand=expand))

"""Each way in which a request is not the model's is refused by its own words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from edl.errors import RequestRefused
from edl.proto.arena import Array
from edl.proto.forms import Form
from edl.proto.tensors import InferRequest, Parameter
from edl.teacher.model import ModelSpec, TensorSpec
from edl.teacher.validation import check_model, check_request, deadline_of
from edl.teacher.wanted import Wanted
from edl.tests.teacher.fakes import SPEC, array

TWO = ModelSpec(
    "fake",
    (TensorSpec("image", "UINT8", (-1, 2, 2)), TensorSpec("ids", "INT64", (-1, -1))),
    (TensorSpec("logits", "FP32", (-1, 10)),),
    "c",
    ("n",),
)


def request(inputs: Mapping[str, Array], *outputs: str) -> InferRequest:
    return InferRequest("m", inputs=dict(inputs), outputs=outputs)


def image_and_ids(rows: int = 3, length: int = 5) -> dict[str, Array]:
    return {"image": array(rows, 2, 2, dtype="u1"), "ids": array(rows, length, dtype="i8")}


def test_a_good_request_asks_for_all_outputs_or_for_some_in_its_own_order() -> None:
    assert check_request(request(image_and_ids()), TWO) == (Wanted("logits"),)
    x = {"x": array(2, 4)}
    total, double = Wanted("sum"), Wanted("double")
    assert check_request(request(x), SPEC) == (total, double)
    assert check_request(request(x, "double", "sum"), SPEC) == (double, total)
    assert check_request(request(x, "double"), SPEC) == (double,)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, r"missing input 'image': expected \['image', 'ids'\], got \[\]"),
        ({"image": array(3, 2, 2, dtype="u1")}, r"missing input 'ids'.*got \['image'\]"),
        ({**image_and_ids(), "mask": array(3)}, "unknown input 'mask'.*expected"),
        (
            {**image_and_ids(), "image": array(3, 2, 2)},
            "input 'image' has datatype FP32, expected UINT8",
        ),
        (
            {**image_and_ids(), "image": array(3, 2, 3, dtype="u1")},
            r"input 'image' has shape \[3, 2, 3\], expected \[-1, 2, 2\]",
        ),
        ({**image_and_ids(), "ids": array(3, dtype="i8")}, r"has shape \[3\], expected \[-1, -1\]"),
        ({**image_and_ids(), "ids": array(4, 5, dtype="i8")}, "'image': 3, 'ids': 4"),
        (image_and_ids(rows=0), "batch is empty"),
    ],
)
def test_a_wrong_input_is_refused_naming_expected_and_given(
    inputs: dict[str, Array], words: str
) -> None:
    with pytest.raises(RequestRefused, match=words):
        check_request(request(inputs), TWO)


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (("logit",), r"unknown output 'logit': expected some of \['sum', 'double'\]"),
        (("sum", "sum"), "asked for twice"),
    ],
)
def test_a_wrong_output_is_refused(outputs: tuple[str, ...], words: str) -> None:
    with pytest.raises(RequestRefused, match=words):
        check_request(request({"x": array(2, 4)}, *outputs), SPEC)


def in_forms(
    parameters: dict[str, Any], outputs: Mapping[str, dict[str, Any]] = MappingProxyType({})
) -> InferRequest:
    inputs = image_and_ids()
    return InferRequest("m", parameters=parameters, inputs=inputs, output_parameters=dict(outputs))


def test_a_form_is_named_by_an_output_or_for_all_by_the_request() -> None:
    own = {"logits": {"form": "topk:3", "temperature": 4.0}}
    kept = Wanted("logits", Form(None, 3, 4.0))
    assert check_request(in_forms({}, own), TWO) == (kept,)
    assert check_request(in_forms({"form": "float16"}, own), TWO) == (kept,)
    assert check_request(in_forms({"form": "float16"}), TWO) == (Wanted("logits", Form("float16")),)
    softmax = (Wanted("logits", Form(temperature=2.0)),)
    assert check_request(in_forms({"temperature": 2}), TWO) == softmax
    other = {"logits": {"priority": 3}}
    assert check_request(in_forms({}, other), TWO) == (Wanted("logits"),)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"form": "topk"}, "output 'logits': there is no form 'topk': name one of float32, bfl"),
        ({"form": 16}, "'form' is text, as 'topk:20', not 16"),
        ({"form": "topk:10"}, "has 10 classes, so topk:10 leaves none out: K must be below"),
        ({"temperature": -1.0}, "a temperature is a finite number above 0, not -1.0"),
        ({"temperature": "hot"}, "'temperature' is a number, not 'hot'"),
    ],
)
def test_a_form_that_cannot_be_is_refused(parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestRefused, match=words):
        check_request(in_forms({}, {"logits": parameters}), TWO)


@pytest.mark.parametrize(
    ("datatype", "shape", "words"),
    [
        ("INT64", (-1, 10), "output 'y' is INT64, and the form topk:2 is for floats"),
        ("FP32", (-1,), r"has shape \[-1\], no classes for topk:2"),
        ("FP32", (-1, -1), "leaves the number of its classes open"),
    ],
)
def test_a_form_that_an_output_cannot_have_is_refused(
    datatype: str, shape: tuple[int, ...], words: str
) -> None:
    spec = replace(TWO, outputs=(TensorSpec("y", datatype, shape),))
    with pytest.raises(RequestRefused, match=words):
        check_request(in_forms({"form": "topk:2"}), spec)


def test_a_model_is_known_by_name_and_version() -> None:
    check_model("resnet", "", "resnet")
    check_model("resnet", "1", "resnet")
    with pytest.raises(RequestRefused, match="unknown model 'vgg': this teacher serves 'resnet'"):
        check_model("vgg", "", "resnet")
    with pytest.raises(RequestRefused, match="unknown version '2'"):
        check_model("resnet", "2", "resnet")


@pytest.mark.parametrize(
    ("timeout_us", "call_s", "deadline_s"),
    [
        (None, None, None),
        (None, 107.0, 107.0),
        (0, 107.0, 107.0),
        (0, None, None),
        (2_500_000, None, 102.5),
        (2_500_000, 101.0, 101.0),
        (2_500_000, 107.0, 102.5),
    ],
)
def test_the_earlier_deadline_counts(
    timeout_us: int | None, call_s: float | None, deadline_s: float | None
) -> None:
    parameters = {} if timeout_us is None else {"timeout": timeout_us}
    request = InferRequest("resnet", parameters=dict(parameters))
    assert deadline_of(request, call_s, 100.0) == deadline_s


@pytest.mark.parametrize("timeout", [-1, 1.5, "5", True])
def test_a_timeout_that_is_none_is_refused(timeout: Parameter) -> None:
    request = InferRequest("resnet", parameters={"timeout": timeout})
    with pytest.raises(RequestRefused, match="'timeout' is a whole number of microseconds, not"):
        deadline_of(request, None, 100.0)

"""Requests against the specs of a model; the identity of a model and of a teacher."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.proto.arena import Array
from edl.proto.datatypes import Parameter, TensorSpec
from edl.proto.forms import LabelForm
from edl.proto.security.instance import CHALLENGE
from edl.proto.tensors import InferRequest
from edl.runtime.errors import RequestRefused, UsageError
from edl.teacher.backends import ModelSpec
from edl.teacher.backends.framework import instruction_set
from edl.teacher.identity import InstanceIdentity
from edl.teacher.request import RequestedOutput, check_inputs, check_request, deadline_of
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


def test_a_request_selects_and_orders_outputs() -> None:
    assert check_request(request(image_and_ids()), TWO) == (RequestedOutput("logits"),)
    x = {"x": array(2, 4)}
    total, double = RequestedOutput("sum"), RequestedOutput("double")
    assert check_request(request(x), SPEC) == (total, double)
    assert check_request(request(x, "double", "sum"), SPEC) == (double, total)
    assert check_request(request(x, "double"), SPEC) == (double,)
    words = r"unknown output 'logit': expected some of \['sum', 'double'\]"
    for outputs, error in ((("logit",), words), (("sum", "sum"), "asked for twice")):
        with pytest.raises(RequestRefused, match=error):
            check_request(request(x, *outputs), SPEC)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, r"missing input 'image': expected \['image', 'ids'\], got \[\]"),
        ({"image": array(3, 2, 2, dtype="u1")}, r"missing input 'ids'.*got \['image'\]"),
        ({**image_and_ids(), "mask": array(3)}, "unknown input 'mask'.*expected"),
        ({**image_and_ids(), "image": array(3, 2, 2)}, "'image' has datatype FP32, expected UINT8"),
        ({**image_and_ids(), "image": array(3, 2, 3, dtype="u1")}, r"shape \[3, 2, 3\], expected"),
        ({**image_and_ids(), "ids": array(3, dtype="i8")}, r"has shape \[3\], expected \[-1, -1\]"),
        ({**image_and_ids(), "ids": array(4, 5, dtype="i8")}, "'image': 3, 'ids': 4"),
        (image_and_ids(rows=0), "batch is empty"),
    ],
)
def test_a_wrong_input_is_refused(inputs: dict[str, Array], words: str) -> None:
    def check() -> None:
        check_request(request(inputs), TWO)
        check_inputs(inputs, TWO)

    with pytest.raises(RequestRefused, match=words):
        check()


def in_forms(
    parameters: dict[str, Any], outputs: Mapping[str, dict[str, Any]] = MappingProxyType({})
) -> InferRequest:
    inputs = image_and_ids()
    return InferRequest("m", parameters=parameters, inputs=inputs, output_parameters=dict(outputs))


def test_forms_of_an_output_and_of_the_request() -> None:
    own = {"logits": {"form": "topk:3", "temperature": 4.0}}
    kept = RequestedOutput("logits", LabelForm(None, 3, 4.0))
    assert check_request(in_forms({}, own), TWO) == (kept,)
    assert check_request(in_forms({"form": "float16"}, own), TWO) == (kept,)
    assert check_request(in_forms({"form": "float16"}), TWO) == (
        RequestedOutput("logits", LabelForm("float16")),
    )
    softmax = (RequestedOutput("logits", LabelForm(temperature=2.0)),)
    assert check_request(in_forms({"temperature": 2}), TWO) == softmax
    other = {"logits": {"priority": 3}}
    assert check_request(in_forms({}, other), TWO) == (RequestedOutput("logits"),)


@pytest.mark.parametrize(
    ("parameters", "output", "words"),
    [
        ({"form": "topk"}, "y:FP32:-1,10", "output 'y': there is no form 'topk': name one of fl"),
        ({"form": "topk:10"}, "y:FP32:-1,10", "has 10 classes, so topk:10 leaves none out"),
        ({"form": "topk:2"}, "y:INT64:-1,10", "'y' is INT64, and the form topk:2 is for floats"),
        ({"form": "topk:2"}, "y:FP32:-1", r"has shape \[-1\], no classes for topk:2"),
        ({"form": "topk:2"}, "y:FP32:-1,-1", "leaves the number of its classes open"),
        ({"temperature": 2.0}, "y:INT64:-1", "'y' is INT64, and a temperature is for floats"),
    ],
)
def test_an_unsuitable_form_is_refused(parameters: dict[str, Any], output: str, words: str) -> None:
    spec = replace(TWO, outputs=(TensorSpec.parse(output),))
    with pytest.raises(RequestRefused, match=words):
        check_request(in_forms(parameters), spec)


@pytest.mark.parametrize(
    ("timeout_us", "call_deadline_s", "deadline_s"),
    [
        (None, None, math.inf),
        (None, 107.0, 107.0),
        (0, 107.0, 107.0),
        (0, None, math.inf),
        (2_500_000, None, 102.5),
        (2_500_000, 101.0, 101.0),
        (2_500_000, 107.0, 102.5),
        # None is more than a day away.
        (0, 1e300, 86_500.0),
        (10**400, math.inf, 86_500.0),
    ],
)
def test_the_earlier_deadline_counts(
    timeout_us: int | None, call_deadline_s: float | None, deadline_s: float
) -> None:
    parameters = {} if timeout_us is None else {"timeout": timeout_us}
    request = InferRequest("resnet", parameters=dict(parameters))
    assert deadline_of(request, call_deadline_s, 100.0) == deadline_s


def test_a_wrong_timeout_is_refused() -> None:
    wrong: tuple[Parameter, ...] = (-1, 1.5, "5", True)
    for timeout in wrong:
        request = InferRequest("resnet", parameters={"timeout": timeout})
        with pytest.raises(RequestRefused, match="'timeout' must be a whole number"):
            deadline_of(request, None, 100.0)


shapes = st.lists(st.integers(-1, 9).filter(bool), min_size=1, max_size=4).map(tuple)


@given(st.text(min_size=1), st.sampled_from(["FP32", "INT64"]), shapes)
def test_tensor_specs_survive_text(name: str, datatype: str, shape: tuple[int, ...]) -> None:
    spec = TensorSpec(name, datatype, shape)
    assert TensorSpec.parse(str(spec)) == spec


def test_a_wrong_spec_is_refused() -> None:
    for text in ("", "x", "x:FP32", "x:FP32:", "x:FP32:a", "x:FP32:-2", ":FP32:1"):
        with pytest.raises(UsageError, match=r"image:FP32:-1,3,224,224|has no name"):
            TensorSpec.parse(text)
    with pytest.raises(UsageError, match="'FLOAT'; known are BOOL, UINT8"):
        TensorSpec.parse("x:float:-1,4")


def test_the_numerics_id_depends_on_every_word() -> None:
    assert SPEC.numerics_id.startswith("fake-1-fp32-")
    eight, four = SPEC.in_micro_batches(8), SPEC.in_micro_batches(4)
    ids = {SPEC.numerics_id, eight.numerics_id, four.numerics_id}
    assert len(ids) == 3
    assert eight.numerics_id == SPEC.in_micro_batches(8).numerics_id


def test_a_long_challenge_is_refused() -> None:
    with pytest.raises(RequestRefused, match="edl-challenge"):
        InstanceIdentity("s", "t1", 41).proof({CHALLENGE: "c" * 5000})


CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
flags\t\t: fpu sse4_1 avx2 avx512f rdtscp fma

processor\t: 1
vendor_id\t: AuthenticAMD
flags\t\t: fpu
"""


def test_the_instruction_set_names_decisive_flags(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(CPUINFO)
    word = instruction_set(file)
    assert word.endswith(",AuthenticAMD,avx2,avx512f,fma,sse4_1")
    file.write_text(CPUINFO.replace("avx512f ", ""))
    assert instruction_set(file) != word
    assert "," not in instruction_set(tmp_path / "nope"), "the architecture alone"

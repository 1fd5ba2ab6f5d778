"""Messages like earlier ones: prepared requests, known kinds and heads, answers of streams."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edl import errors
from edl.errors import BadAnswer, EdlError, RateLimited, RetryableError, WireError
from edl.proto import inference_pb2 as pb
from edl.proto import stream_answers, tensors
from edl.proto.alike import SECONDS, Head
from edl.proto.answer_header import Parameter, answer_header
from edl.proto.lent_arena import Lent
from edl.proto.places import GENERATION_BYTES, OFFSET, Place
from edl.proto.prepared import Prepared, is_led
from edl.proto.request_kinds import Cut, cut, is_right
from edl.proto.status import from_status, to_metadata, to_status
from edl.proto.stream_answers import answered, failed, read
from edl.proto.tensors import Array, decode_response, encode_response

from .strategies import as_parameters

X = np.zeros((2, 3), np.float32)
IDS = st.text(max_size=30)
NUMBERS = st.integers(8, (1 << 63) - 1)


def request(request_id: str = "7", place: Place | None = None, **others: Any) -> bytes:
    place = place or Place("edl-r", 64, X.nbytes, 1234567)
    return tensors.encode_request(
        **{
            "model_name": "m",
            "inputs": {"x": X},
            "request_id": request_id,
            "parameters": {"timeout": 30_000_000, "teacher_id": "t"},
            "places": {"x": place},
            **others,
        }
    )


def found_in(data: bytes) -> Cut:
    found = cut(data)
    assert found is not None
    assert is_right(data, found)
    return found


@given(IDS, NUMBERS, NUMBERS, st.sampled_from(["", "1"]), st.booleans())
def test_id_and_place_are_found(
    request_id: str, offset: int, generation: int, version: str, apart: bool
) -> None:
    place = Place("edl-r", offset, X.nbytes, generation, 0 if apart and offset > 8 else None)
    found = found_in(request(request_id, place, model_version=version))
    assert found.request_id == request_id
    named = place.generation_at if place.generation_at != offset - 8 else None
    assert found.numbers == (offset, generation, named)


@pytest.mark.parametrize(
    "others",
    [
        {"model_name": "n"},
        {"parameters": {"timeout": 30_000_001, "teacher_id": "t"}},
        {"outputs": ["y"]},
        {"place": Place("edl-s", 64, X.nbytes, 1234567)},
        {"place": Place("edl-r", 64, X.nbytes + 1, 1234567)},
        {"inputs": {"y": X}, "places": {"y": Place("edl-r", 64, X.nbytes, 1234567)}},
        {"inputs": {"x": X.astype(np.int32)}},
    ],
)
def test_only_the_id_and_the_place_may_differ_within_a_kind(others: dict[str, Any]) -> None:
    kind = found_in(request()).kind
    assert found_in(request("8", Place("edl-r", 72, X.nbytes, 1234568))).kind == kind
    assert found_in(request(**others)).kind != kind


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"\x0a",
        request()[:-1],
        request(places={}),
        request(place=Place("edl-r", 0, X.nbytes)),
        request(request_id="i" * 200),
        request(parameters={"a": "b" * 2000}),
        request(inputs={"x": X, "y": X}),
        request().replace(OFFSET.encode() + b"\x12\x02", OFFSET.encode() + b"\x12\x03"),
    ],
    ids=["no key", "a key", "cut", "sent", "no generation", "long id", "long rest", "two inputs",
         "a number of another length"],
)  # fmt: skip
def test_what_looks_otherwise_is_not_cut(data: bytes) -> None:
    found = cut(data)
    assert found is None or not is_right(data, found)


@given(st.binary(max_size=60), st.data())
def test_bytes_of_any_kind_are_cut_or_not(junk: bytes, data: st.DataObject) -> None:
    good = request()
    at = data.draw(st.integers(0, len(good)))
    for message in (junk, good[:at] + junk + good[at:], good[:at] + junk):
        if (found := cut(message)) is not None:
            is_right(message, found)


def test_a_number_that_only_looks_like_the_place_is_not_believed() -> None:
    """What stands in a text has the very bytes, and the same value, as the place itself."""
    message = pb.ModelInferRequest.FromString(request(place=Place("edl-r", 64, X.nbytes, 99)))
    entry = b"\x0a\x14" + OFFSET.encode() + b"\x12\x02\x10\x40"
    named = message.inputs[0].parameters
    number = named[OFFSET].int64_param
    del named[OFFSET]
    message.parameters["odd"].string_param = entry.decode()
    named[OFFSET].uint64_param = number  # another kind, so that it is not what is looked for
    data = message.SerializeToString()
    found = cut(data)
    assert found is None or not is_right(data, found)


def test_two_inputs_in_shared_memory_are_not_cut() -> None:
    both = {"x": X, "y": X}
    places = {name: Place("edl-r", 64, X.nbytes, 99) for name in both}
    assert cut(request(inputs=both, places=places)) is None


BATCH = np.zeros((4, 3), np.uint8)


def message(request_id: str, lying: list[Lent]) -> bytes:
    names = [f"x{number}" for number in range(len(lying))]
    places = {
        name: Place("r", lent.offset, BATCH.nbytes, *lent[1:])
        for name, lent in zip(names, lying, strict=True)
    }
    return request(request_id, inputs=dict.fromkeys(names, BATCH), places=places)


@st.composite
def lyings(draw: st.DrawFn, led: list[bool]) -> list[Lent]:
    """Places of as many inputs, each led by its generation or not."""
    found = []
    for is_first in led:
        at = draw(st.integers(64, 1 << 40))
        before = 0 if is_first else draw(st.integers(1, at - GENERATION_BYTES))
        generation = draw(st.integers(1, (1 << 63) - 1))
        found.append(Lent(at, generation, at - GENERATION_BYTES - before))
    return found


@given(st.data(), st.lists(st.booleans(), min_size=1, max_size=3), st.text(max_size=8))
def test_prepared_request_equals_one_made_anew(
    data: st.DataObject, led: list[bool], number: str
) -> None:
    first, *others = data.draw(st.lists(lyings(led), min_size=2, max_size=4))
    assert [is_led(lent) for lent in first] == led
    prepared = Prepared("kind", message("1", first))
    for lying in others:
        found = pb.ModelInferRequest.FromString(prepared.message(number, lying))
        assert found == pb.ModelInferRequest.FromString(message(number, lying))


ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, EdlError) and kind is not EdlError
]


@given(st.binary(max_size=300))
def test_a_response_comes_out_as_it_went_in(response: bytes) -> None:
    assert bytes(read(answered(response))) == response


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_a_failure_is_read_as_by_a_call_of_its_own(kind: type[EdlError]) -> None:
    error = kind("why not")
    if isinstance(error, RateLimited):
        error.retry_after_s = 1.5
    as_call = from_status(*to_status(error), to_metadata(error))
    answer = pb.ModelStreamInferResponse.FromString(failed(error, "7"))
    assert answer.infer_response.id == "7", "it names its request"
    with pytest.raises(EdlError) as caught:
        read(failed(error, "7"))
    assert type(caught.value) is type(as_call)
    assert str(caught.value) == str(as_call)
    if isinstance(as_call, RateLimited):
        assert isinstance(caught.value, RateLimited)
        assert caught.value.retry_after_s == as_call.retry_after_s == 1.5


def test_what_is_neither_labels_nor_an_error_is_no_answer() -> None:
    twice = answered(b"a") + answered(b"b")
    for nonsense in (b"", twice, b"\xff\xff", answered(b"x")[:-1], b"\x0a\x01\xff"):
        with pytest.raises(BadAnswer):
            read(nonsense)


@pytest.mark.parametrize(
    ("status", "kind"),
    [({}, RetryableError), ({"status": "OK"}, BadAnswer), ({"status": "NEW"}, RetryableError)],
)
def test_an_error_without_a_known_status(status: dict[str, Any], kind: type[EdlError]) -> None:
    about = pb.ModelInferResponse(parameters=as_parameters(status))
    answer = pb.ModelStreamInferResponse(error_message="so", infer_response=about)
    with pytest.raises(kind, match="so"):
        read(answer.SerializeToString())


@given(st.binary(max_size=200))
def test_garbage_raises_our_errors_only(data: bytes) -> None:
    with contextlib.suppress(EdlError):
        read(data)


TEXT = st.text(max_size=200)
VALUES = st.one_of(
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(allow_nan=False),
    st.sampled_from([0, 1, 0.0, -0.0, 1.0, False, True, ""]),
    TEXT,
)
PARAMETERS = st.dictionaries(TEXT, VALUES, max_size=6)
OUTPUTS = st.lists(
    st.tuples(TEXT, TEXT, st.lists(st.integers(0, 1 << 62), max_size=5).map(tuple), PARAMETERS),
    max_size=3,
)


def said(parameters: Any) -> dict[str, Parameter]:
    return {
        name: getattr(value, str(value.WhichOneof("parameter_choice")))
        for name, value in parameters.items()
    }


def spelt(parameters: dict[str, Parameter]) -> dict[str, str]:
    return {name: repr(value) for name, value in parameters.items()}


@given(TEXT, TEXT, TEXT, PARAMETERS, OUTPUTS)
@example("m", "", "", {"a": 0.0}, [])
@example("m", "", "", {"a": -0.0}, [])
@example("m", "", "", {"a": True, "b": 1}, [("y", "FP32", (0,), {"b": True, "a": 1})])
def test_header(name: str, version: str, request_id: str, parameters: Any, outputs: Any) -> None:
    data = answer_header(
        model_name=name,
        model_version=version,
        request_id=request_id,
        parameters=parameters,
        outputs=outputs,
    )
    message = pb.ModelInferResponse.FromString(data)
    assert (message.model_name, message.model_version, message.id) == (name, version, request_id)
    assert spelt(said(message.parameters)) == spelt(parameters)
    assert len(message.outputs) == len(outputs)
    for output, given_one in zip(message.outputs, outputs, strict=True):
        assert (output.name, output.datatype, tuple(output.shape)) == given_one[:3]
        assert spelt(said(output.parameters)) == spelt(given_one[3])
    known = pb.ModelInferResponse.FromString(data)
    known.DiscardUnknownFields()
    assert known == message


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        *(({"a": value}, WireError) for value in (1 << 64, -(1 << 63) - 1, None)),
        *((text, UnicodeEncodeError) for text in ({"a": "\ud800"}, {"\ud800": 1})),
    ],
)
def test_a_parameter_that_cannot_be_sent_is_refused(parameters: Any, error: Any) -> None:
    beside: dict[str, Any] = {"model_name": "m", "model_version": "", "request_id": ""}
    with pytest.raises(error, match=r"parameter 'a' cannot be sent|surrogates"):
        answer_header(**beside, parameters=parameters, outputs=[])


LABELS = np.arange(6, dtype=np.float32).reshape(3, 2)
SAID = {"teacher_id": "t1", SECONDS: 0.25, "content_id": "c", "draining": False}


def answer(
    request_id: str = "17", labels: Array = LABELS, parameters: dict[str, Any] = SAID, **said: Any
) -> memoryview:
    response = encode_response(
        model_name="m", outputs={"y": labels}, request_id=request_id, parameters=parameters, **said
    )
    return memoryview(stream_answers.answered(response))


def head_of(made: memoryview) -> Head:
    head = Head.of(made)
    assert head is not None
    return head


@given(
    request_id=st.text("0123456789", min_size=1, max_size=200),
    seconds=st.floats(allow_nan=False),
    rows=st.integers(0, 40),
)
def test_a_known_head_says_what_decoding_says(request_id: str, seconds: float, rows: int) -> None:
    labels = np.random.default_rng(rows).random((rows, 2), np.float32)
    head = head_of(answer(labels=np.zeros_like(labels)))
    made = answer(request_id, labels, {**SAID, SECONDS: seconds})
    found = head.read(made, request_id)
    assert found is not None
    decoded = decode_response(stream_answers.read(made))
    assert found[0] == decoded.parameters[SECONDS] == seconds
    np.testing.assert_array_equal(found[1], decoded.outputs["y"])
    assert found[1].dtype == decoded.outputs["y"].dtype
    assert not found[1].flags.writeable


@pytest.mark.parametrize(
    "other",
    [
        answer("18"),
        answer(labels=LABELS[:2]),
        answer(parameters={**SAID, "more": 1}),
        answer(output_parameters={"y": {"form": "float16"}}),
        answer()[:-1],
        memoryview(bytes(answer()) + b"\0"),
        memoryview(b""),
    ],
)
def test_other_differences_are_found(other: memoryview) -> None:
    head = head_of(answer())
    assert head.read(answer(), "17") is not None
    assert head.read(other, "17") is None


@given(st.data())
def test_no_bit_of_the_head_goes_unseen(data: st.DataObject) -> None:
    made = bytearray(answer())
    at = data.draw(st.integers(0, len(made) - LABELS.nbytes - 1))
    made[at] ^= 1 << data.draw(st.integers(0, 7))
    if (found := head_of(answer()).read(memoryview(made), "17")) is not None:
        decoded = decode_response(stream_answers.read(made))
        assert decoded.parameters == {**SAID, SECONDS: found[0]} or np.isnan(found[0])


@pytest.mark.parametrize(
    "unlike",
    [
        answer(parameters={"teacher_id": "t1"}),
        answer(parameters={SECONDS: 1}),
        answer(""),
        answer(labels=np.array([True, False])),
        answer(labels=np.array([b"text"], object)),
    ],
)
def test_some_answers_are_like_no_other(unlike: memoryview) -> None:
    assert Head.of(unlike) is None


@given(st.text(max_size=6), st.text(max_size=40), st.binary(max_size=30))
def test_a_head_is_right_or_there_is_none(request_id: str, text: str, more: bytes) -> None:
    # What stands in other texts may look like the id, or like the parameter.
    inner = text + "\n\x0e" + SECONDS + "\x12\t!" + more.hex()
    made = answer(request_id, parameters={"a": inner, **SAID, "z": text})
    if (head := Head.of(made)) is not None:
        found = head.read(made, request_id)
        assert found is not None
        assert found[0] == SAID[SECONDS]

"""An answer that has the head of another is read as if it had been decoded; any other is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.proto import stream_answers
from edl.proto.alike import SECONDS, Head
from edl.proto.tensors import Array, decode_response, encode_response

LABELS = np.arange(6, dtype=np.float32).reshape(3, 2)
SAID = {"teacher_id": "t1", SECONDS: 0.25, "content_id": "c", "draining": False}


def answer(
    request_id: str = "17", labels: Array = LABELS, parameters: dict[str, Any] = SAID, **said: Any
) -> memoryview:
    """As it comes over a stream."""
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
def test_it_says_what_decoding_says(request_id: str, seconds: float, rows: int) -> None:
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
        answer(labels=LABELS.astype(np.int32)),
        answer(labels=LABELS.reshape(2, 3)),
        answer(parameters={**SAID, "teacher_id": "t2"}),
        answer(parameters={**SAID, "content_id": "d"}),
        answer(parameters={**SAID, "draining": True}),
        answer(parameters={**SAID, "more": 1}),
        answer(parameters={SECONDS: 0.25}),
        answer(output_parameters={"y": {"form": "float16"}}),
        answer(model_version="2"),
        answer()[:-1],
        memoryview(bytes(answer()) + b"\0"),
        memoryview(b""),
    ],
)
def test_whatever_else_differs_is_found(other: memoryview) -> None:
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

"""Requests: prepared ones, and the fast path for requests of a known kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.proto import inference_pb2 as pb
from edl.proto import tensors
from edl.proto.lent_arena import Lent
from edl.proto.places import GENERATION_BYTES, OFFSET, Place
from edl.proto.prepared import Prepared, is_led
from edl.proto.request_kinds import Cut, cut, is_right
from edl.proto.tensors import encode_request

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
def test_id_and_place(
    request_id: str, offset: int, generation: int, version: str, apart: bool
) -> None:
    place = Place("edl-r", offset, X.nbytes, generation, 0 if apart and offset > 8 else None)
    found = found_in(request(request_id, place, model_version=version))
    assert found.request_id == request_id
    named = place.generation_at if place.generation_at != offset - 8 else None
    assert found.numbers == (offset, generation, named)


def test_what_differs_in_nothing_else_is_of_one_kind() -> None:
    kinds = {
        found_in(request(str(number), Place("edl-r", 1000 + number, X.nbytes, 99))).kind
        for number in range(10, 99)
    }
    assert len(kinds) == 1


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
def test_what_differs_in_anything_else_is_of_another_kind(others: dict[str, Any]) -> None:
    assert found_in(request()).kind != found_in(request(**others)).kind


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"\x0a",
        request()[:-1],
        request(places={}),
        request(place=Place("edl-r", 0, X.nbytes)),
        request(request_id="i" * 200),
        request(parameters={"a": "b" * 2000}),
    ],
    ids=["empty", "no key", "a key", "cut", "sent", "no generation", "long id", "long rest"],
)
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


def test_an_input_beside_it_makes_it_none() -> None:
    both = {"x": X, "y": X}
    places = {name: Place("edl-r", 64, X.nbytes, 99) for name in both}
    assert cut(request(inputs=both, places=places)) is None
    data = request(inputs=both)
    found = cut(data)
    assert found is None or not is_right(data, found)


BATCH = np.zeros((4, 3), np.uint8)


def message(request_id: str, lying: list[Lent]) -> bytes:
    names = [f"x{number}" for number in range(len(lying))]
    places = {
        name: Place("r", lent.offset, BATCH.nbytes, *lent[1:])
        for name, lent in zip(names, lying, strict=True)
    }
    return encode_request(
        model_name="m",
        inputs=dict.fromkeys(names, BATCH),
        request_id=request_id,
        parameters={"timeout": 5},
        places=places,
    )


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
def test_it_is_as_if_it_were_made_anew(data: st.DataObject, led: list[bool], number: str) -> None:
    first, *others = data.draw(st.lists(lyings(led), min_size=2, max_size=4))
    assert [is_led(lent) for lent in first] == led
    prepared = Prepared("kind", message("1", first))
    for lying in others:
        found = pb.ModelInferRequest.FromString(prepared.message(number, lying))
        assert found == pb.ModelInferRequest.FromString(message(number, lying))

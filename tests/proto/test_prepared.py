"""A request that was prepared is the one that would have been made."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edl.proto import inference_pb2 as pb
from edl.proto.lent_arena import Lent
from edl.proto.places import GENERATION_BYTES, Place
from edl.proto.prepared import Prepared, is_led
from edl.proto.tensors import encode_request

X = np.zeros((4, 3), np.uint8)


def message(request_id: str, lying: list[Lent]) -> bytes:
    """As the codec makes it."""
    names = [f"x{number}" for number in range(len(lying))]
    places = {
        name: Place("r", lent.offset, X.nbytes, *lent[1:])
        for name, lent in zip(names, lying, strict=True)
    }
    return encode_request(
        model_name="m",
        inputs=dict.fromkeys(names, X),
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

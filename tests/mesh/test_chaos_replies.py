"""Answers over HTTP, spoilt: what each lie makes of one, and that replies come through whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.errors import WireError
from edl.mesh.chaos.lies import LIES, Liar
from edl.mesh.chaos.replies import ReplyCutter, WebReply
from edl.proto.json_asking import decode_response
from edl.proto.json_tensors import BINARY_DEFAULT, HEAD_LENGTH, encode_response
from edl.proto.tensors import InferRequest, InferResponse
from edl.tests.mesh.test_chaos_lies import LABELS, PARAMETERS
from edl.tests.proto.clients.scripted_http import reply

_SAID, _RAWS = encode_response(
    InferRequest("", parameters={BINARY_DEFAULT: True}),
    InferResponse("chaos", outputs={"soft": LABELS}, parameters=dict(PARAMETERS)),
    (),
)
ANSWER = reply(b"".join((_SAID, *_RAWS)), headers={HEAD_LENGTH: len(_SAID)})
ALIVE = reply(headers={"edl-http": "0123456789abcdef"})
REFUSED = reply(b'{"error": "full"}', "429 Much", {"edl-status": "RESOURCE_EXHAUSTED"})


def through(kind: str | None, said: bytes, seed: int = 1, size: int = 1 << 20) -> bytes:
    """What comes of `said` through the gate of a liar, in pieces of `size`."""
    liar = Liar(seed)
    liar.tell(kind)
    hand_on = liar.web_connection()
    return b"".join(hand_on(said[at : at + size]) for at in range(0, len(said), size))


def spoilt(kind: str, seed: int = 1) -> InferResponse:
    (one,) = ReplyCutter().feed(through(kind, ANSWER, seed))
    assert isinstance(one, WebReply)
    answer = one.answer()
    assert answer is not None
    return decode_response(memoryview(answer[0]), memoryview(answer[1]))


@given(st.integers(1, 400))
def test_replies_come_through_whole_however_they_arrive(size: int) -> None:
    said = ALIVE + ANSWER + REFUSED + ANSWER
    assert through(None, said, size=size) == said


@pytest.mark.parametrize("kind", sorted(LIES))
def test_only_answers_are_spoilt(kind: str) -> None:
    assert through(kind, ALIVE + REFUSED) == ALIVE + REFUSED
    assert through(kind, ANSWER) != ANSWER


def test_what_is_no_plain_reply_is_handed_on() -> None:
    said = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert through("answer-nan", said + ANSWER, size=7) == said + ANSWER


def test_a_nan_is_somewhere_in_it() -> None:
    assert np.isnan(spoilt("answer-nan").outputs["soft"]).sum() == 1


def test_a_row_is_missing() -> None:
    np.testing.assert_array_equal(spoilt("answer-shape").outputs["soft"], LABELS[1:])


def test_another_life_answers() -> None:
    assert spoilt("answer-instance").parameters["incarnation"] == "1700000000002"


def test_labels_are_of_other_samples() -> None:
    np.testing.assert_array_equal(spoilt("answer-other").outputs["soft"], np.roll(LABELS, -1, 0))


@given(st.integers(0, 10_000))
def test_a_flipped_bit_shows_or_does_not_matter(seed: int) -> None:
    try:
        said = spoilt("answer-flip", seed)
    except WireError:
        return
    (labels,) = said.outputs.values()
    np.testing.assert_array_equal(labels, LABELS)

"""Spoilt answers over gRPC and HTTP: what each lie does, and that frames come through whole."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.errors import RetryableError, WireError
from edl.mesh.chaos.frames import Cutter, Frame
from edl.mesh.chaos.lies import LIES, Liar, spoil
from edl.mesh.chaos.replies import ReplyCutter, WebReply
from edl.proto import inference_pb2 as pb
from edl.proto import tensors
from edl.proto.arena import Array
from edl.proto.json_asking import decode_response as decode_reply
from edl.proto.json_tensors import BINARY_DEFAULT, HEAD_LENGTH
from edl.proto.json_tensors import encode_response as encode_reply
from edl.proto.stream_answers import answered, failed, read
from edl.proto.tensors import InferRequest, InferResponse
from edl.tests.proto.clients.scripted_http import reply

ROWS, CLASSES = 4, 6
LABELS = np.arange(ROWS * CLASSES, dtype=np.float32).reshape(ROWS, CLASSES)
PARAMETERS: dict[str, bool | int | float | str] = {
    "teacher_id": "t1",
    "incarnation": "1700000000001",
    "content_id": "5f0c",
    "device_seconds": 0.01,
}
ANSWER = tensors.encode_response(
    model_name="chaos", outputs={"soft": LABELS}, request_id="7", parameters=PARAMETERS
)
_SAID, _RAWS = encode_reply(
    InferRequest("", parameters={BINARY_DEFAULT: True}),
    InferResponse("chaos", outputs={"soft": LABELS}, parameters=dict(PARAMETERS)),
    (),
)
HTTP_ANSWER = reply(b"".join((_SAID, *_RAWS)), headers={HEAD_LENGTH: len(_SAID)})
ALIVE = reply(headers={"edl-http": "0123456789abcdef"})
REFUSED = reply(b'{"error": "full"}', "429 Much", {"edl-status": "RESOURCE_EXHAUSTED"})


def pass_through(kind: str | None, said: bytes, seed: int = 1, size: int = 1 << 20) -> bytes:
    """What comes of `said` through the gate of a liar, in pieces of `size`."""
    liar = Liar(seed)
    liar.tell(kind)
    hand_on = liar.web_connection()
    return b"".join(hand_on(said[at : at + size]) for at in range(0, len(said), size))


def spoilt_reply(kind: str, seed: int = 1) -> InferResponse:
    (one,) = ReplyCutter().feed(pass_through(kind, HTTP_ANSWER, seed))
    assert isinstance(one, WebReply)
    answer = one.answer()
    assert answer is not None
    return decode_reply(memoryview(answer[0]), memoryview(answer[1]))


def spoilt(kind: str, seed: int = 0, answer: bytes = ANSWER) -> tensors.InferResponse:
    message = spoil(answer, LIES[kind], Random(seed))
    assert message is not None
    return tensors.decode_response(message)


@pytest.mark.parametrize("over", [spoilt, spoilt_reply], ids=["grpc", "http"])
def test_each_lie_spoils_an_answer_in_its_way(over: Callable[[str], tensors.InferResponse]) -> None:
    labels = over("answer-nan").outputs["soft"]
    assert (np.isnan(labels).sum(), labels.shape) == (1, LABELS.shape)
    np.testing.assert_array_equal(over("answer-shape").outputs["soft"], LABELS[1:])
    np.testing.assert_array_equal(over("answer-other").outputs["soft"], np.roll(LABELS, -1, axis=0))
    told = over("answer-instance").parameters
    assert (told["incarnation"], told["teacher_id"]) == ("1700000000002", "t1")


def test_answers_of_streams_are_spoilt_as_those_of_calls_are() -> None:
    message = spoil(answered(ANSWER), LIES["answer-shape"], Random(0))
    assert message is not None
    np.testing.assert_array_equal(
        tensors.decode_response(read(message)).outputs["soft"], LABELS[1:]
    )
    assert spoil(failed(RetryableError("busy"), "7"), LIES["answer-shape"], Random(0)) is None


def test_a_single_sample_does_not_keep_its_labels_either() -> None:
    single = tensors.encode_response(model_name="chaos", outputs={"soft": LABELS[:1]})
    labels = spoilt("answer-other", answer=single).outputs["soft"]
    np.testing.assert_array_equal(labels, np.roll(LABELS[:1], -1, axis=1))


def test_a_flipped_bit_never_makes_a_wrong_label_that_looks_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    header = pb.ModelInferResponse.FromString(ANSWER)
    del header.raw_output_contents[:]
    rng, fates = Random(), set()
    for bit in range(8 * header.ByteSize()):
        monkeypatch.setattr(rng, "randrange", lambda *_, bit=bit: bit)
        message = spoil(ANSWER, LIES["answer-flip"], rng)
        assert message is not None
        assert sum((a ^ b).bit_count() for a, b in zip(message, ANSWER, strict=True)) == 1
        try:
            labels: Array | None = tensors.decode_response(message).outputs.get("soft")
        except WireError:
            fates.add("unreadable")
            continue
        fates.add("readable")
        if labels is not None and labels.shape == LABELS.shape:
            np.testing.assert_array_equal(labels, LABELS)
    assert fates == {"unreadable", "readable"}


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff\xff",
        pb.ModelReadyResponse(ready=True).SerializeToString(),
        pb.ServerMetadataResponse(name="edl-teacher", version="1").SerializeToString(),
    ],
)
def test_what_is_no_answer_is_left_alone(message: bytes) -> None:
    assert spoil(message, LIES["answer-nan"], Random(0)) is None


frames = st.builds(
    Frame,
    st.integers(0, 9),
    st.integers(0, 255),
    st.integers(0, 2**31 - 1),
    st.binary(max_size=200),
)


@given(st.lists(frames, max_size=8), st.lists(st.integers(1, 40)))
def test_frames_come_out_whole_however_they_arrive(sent: list[Frame], sizes: list[int]) -> None:
    data, cutter, found = b"".join(frame.encode() for frame in sent), Cutter(), []
    for size in sizes:
        found += cutter.feed(data[:size])
        data = data[size:]
    assert found + cutter.feed(data) == sent
    for frame in sent:
        again = Frame(0, 0, frame.stream, b"").with_message(frame.payload)
        assert (again.message(), again.stream) == (frame.payload, frame.stream)


@pytest.mark.parametrize(
    "frame",
    [
        Frame(1, 0, 1, bytes(5)),
        Frame(0, 0x8, 1, bytes(5)),
        Frame(0, 0, 1, b"\x01" + bytes(4)),
        Frame(0, 0, 1, bytes(4)),
        Frame(0, 0, 1, bytes(4) + b"\x02a"),
    ],
)
def test_what_is_no_whole_message_is_none(frame: Frame) -> None:
    assert frame.message() is None


def test_a_liar_lies_only_while_it_is_told_to() -> None:
    liar = Liar(seed=1)
    through = liar.connection()
    data = Frame(0, 1, 3, b"").with_message(ANSWER).encode()
    assert through(data) == data
    liar.tell("answer-nan")
    assert through(data) != data
    assert liar.spoilt == 1
    liar.tell(None)
    assert through(data[:20]) + through(data[20:]) == data
    assert liar.spoilt == 1


@given(st.integers(1, 400))
def test_replies_come_through_whole_however_they_arrive(size: int) -> None:
    said = ALIVE + HTTP_ANSWER + REFUSED + HTTP_ANSWER
    assert pass_through(None, said, size=size) == said


@pytest.mark.parametrize("kind", sorted(LIES))
def test_only_answers_are_spoilt(kind: str) -> None:
    assert pass_through(kind, ALIVE + REFUSED) == ALIVE + REFUSED
    assert pass_through(kind, HTTP_ANSWER) != HTTP_ANSWER


def test_what_is_no_plain_reply_is_handed_on() -> None:
    said = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert pass_through("answer-nan", said + HTTP_ANSWER, size=7) == said + HTTP_ANSWER


@given(st.integers(0, 10_000))
def test_a_flipped_bit_shows_or_does_not_matter(seed: int) -> None:
    try:
        said = spoilt_reply("answer-flip", seed)
    except WireError:
        return
    (labels,) = said.outputs.values()
    np.testing.assert_array_equal(labels, LABELS)

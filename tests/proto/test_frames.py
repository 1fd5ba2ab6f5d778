"""Frames and offers of the transport: there and back; what is none is refused."""

from __future__ import annotations

import contextlib
import hmac
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.proto import frames
from edl.proto.frames import (
    OFFER_KEY,
    FramedTensor,
    FrameHeader,
    OpenFrame,
    ResultDescription,
    TransportOffer,
)
from edl.runtime.errors import EdlError, RateLimited, RetryableError, WireError

SHAPES = st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple)
NUMBERS = st.integers(0, (1 << 64) - 1)


@given(
    st.sampled_from(range(1, 6)), st.integers(0, 255), st.integers(0, 65535), NUMBERS, NUMBERS,
    st.floats(allow_nan=False),
)  # fmt: skip
def test_a_header_there_and_back(
    kind: int, flags: int, head: int, number: int, nbytes: int, seconds: float
) -> None:
    header = FrameHeader(kind, flags, head, 7, number, nbytes, seconds)
    packed = header.pack()
    assert len(packed) == frames.HEADER.size
    assert FrameHeader.unpack(packed + b"more") == header


@given(st.binary(min_size=frames.HEADER.size, max_size=100))
def test_bytes_that_are_no_frame(data: bytes) -> None:
    with pytest.raises(WireError):
        FrameHeader.unpack(b"x" + data)
    with contextlib.suppress(WireError):
        OpenFrame.read(data)
    with contextlib.suppress(WireError):
        ResultDescription.take(memoryview(data))
    with contextlib.suppress(WireError):
        assert isinstance(frames.read_error(data), EdlError)


@given(st.lists(SHAPES, min_size=1, max_size=4), st.binary(max_size=8))
def test_shapes_there_and_back(shapes: list[tuple[int, ...]], more: bytes) -> None:
    tensors = [FramedTensor(f"x{n}", "FP32", len(shape)) for n, shape in enumerate(shapes)]
    head = frames.pack_shapes(shapes)
    assert len(head) == 8 * sum(map(len, shapes))
    assert frames.unpack_shapes(head + more, tensors) == shapes
    with pytest.raises(WireError, match="shorter"):
        frames.unpack_shapes(head[:-1], tensors)
    nbytes = 4 * sum(int(np.prod(shape)) for shape in shapes)
    assert [shape for _, shape in frames.layouts_of(tensors, shapes, nbytes)] == shapes
    with pytest.raises(WireError, match="announced"):
        frames.layouts_of(tensors, shapes, nbytes + 1)


@pytest.mark.parametrize("shape", [(1 << 62, 4), (0, 1 << 63), (1 << 32, 1 << 32)])
def test_arrays_larger_than_any_memory_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(WireError):
        frames.layouts_of([FramedTensor("x", "FP32", 2)], [shape], 0)


OPENED = OpenFrame(
    "resnet",
    (FramedTensor("x", "FP32", 2), FramedTensor("mask", "BOOL", 1)),
    ("logits",),
    {"teacher_id": "t1", "incarnation": "7"},
    {"logits": {"edl_form": "topk:2", "edl_temperature": 2.0}},
    "edl-fd-1-2",
    4096,
    "resnet/0",
)


#: What a field of an OPEN frame may not be.
WRONG: dict[str, list[Any]] = {
    "model": [7],
    "inputs": [
        *([], [["x", "FP32", 2, {}]] * 2, [["x", "FP32"]], ["x"], 7),
        *([["x", "FP32", dimensions, {}]] for dimensions in (0, 99, True)),
        *([["x", datatype, 1, {}]] for datatype in ("FP99", "BYTES")),
    ],
    "outputs": [[7], None],
    "parameters": [{"a": []}, []],
    "output_parameters": [{"a": 7}, 7],
    "memory_key": [None],
    "memory_bytes": ["1", -1],
    "caller": [7],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_an_open_frame_that_fixes_nothing_is_refused(name: str, value: Any) -> None:
    frame = OPENED.frame()
    header, said = FrameHeader.unpack(frame), json.loads(frame[frames.HEADER.size :])
    assert (header.kind, header.nbytes) == (frames.OPEN, len(frame) - frames.HEADER.size)
    assert OpenFrame.read(json.dumps(said).encode()) == OPENED
    with pytest.raises(WireError):
        OpenFrame.read(json.dumps({**said, name: value}).encode())
    del said[name]
    with pytest.raises(WireError):
        OpenFrame.read(json.dumps(said).encode())


def test_a_description_there_and_back() -> None:
    outputs = (
        FramedTensor("logits.values", "FP16", 2, {"edl_form": "topk:2"}),
        FramedTensor("y", "BF16", 1),
    )
    description = ResultDescription(outputs, {"teacher_id": "t1", "numerics_id": "n"})
    data = description.to_bytes()
    assert ResultDescription.take(memoryview(data + b"more")) == (description, len(data))
    for cut in (b"", data[:3], data[:-1]):
        with pytest.raises(WireError):
            ResultDescription.take(memoryview(cut))


@pytest.mark.parametrize("error", [RetryableError("restarted"), RateLimited("full", 0.5)])
def test_an_error_there_and_back(error: EdlError) -> None:
    frame = frames.error_frame(7, error, shared_memory_failed=True)
    header = FrameHeader.unpack(frame)
    assert (header.kind, header.number, header.flags) == (
        frames.ERROR,
        7,
        frames.SHARED_MEMORY_FAILED,
    )
    told = frames.read_error(frame[frames.HEADER.size :])
    assert (type(told), str(told)) == (type(error), str(error))
    if isinstance(told, RateLimited):
        assert told.retry_after_s == 0.5


SESSION, SECRET = "0123456789abcdef" * 2, "0123456789abcdef" * 4


@pytest.mark.parametrize("unix_name", ["", "edl-teacher-00ff"])
def test_an_offer_there_and_back(unix_name: str) -> None:
    offer = TransportOffer.new(50051, 8502, unix_name)
    assert TransportOffer.from_metadata([("other", b"\0"), *offer.metadata()]) == offer
    assert TransportOffer.from_metadata([]) is None
    assert offer.secret.hex() not in repr(offer)
    assert TransportOffer.new(50051, 8502, unix_name).session != offer.session


@pytest.mark.parametrize(
    "said",
    [
        "",
        f"1 2 - {SESSION}",
        f"1 2 - {SESSION[1:]} {SECRET}",
        f"1 2 - {SESSION} {SECRET[1:]}",
        f"1 2 - {SESSION.upper()} {SECRET}",
        f"1 123456 - {SESSION} {SECRET}",
        f"\u0661 2 - {SESSION} {SECRET}",
        f"1 2 a/b {SESSION} {SECRET}",
        f"1 2 - {SESSION} {SECRET}\n",
        f"1 2 - {SESSION} {SECRET}".encode(),
    ],
)
def test_what_is_no_offer_is_none(said: str | bytes) -> None:
    assert TransportOffer.from_metadata([(OFFER_KEY, said)]) is None


def test_proofs_differ_by_side_challenge_and_secret() -> None:
    offer, other = TransportOffer.new(1, 2, ""), TransportOffer.new(1, 2, "")
    a, b = bytes(16), bytes([1] * 16)
    proofs = [
        offer.teachers_proof(a, b),
        offer.readers_proof(a, b),
        offer.teachers_proof(b, a),
        other.teachers_proof(a, b),
    ]
    assert len(set(proofs)) == len(proofs)
    assert hmac.compare_digest(proofs[0], offer.teachers_proof(a, b))
    assert not hmac.compare_digest(proofs[0], proofs[1])

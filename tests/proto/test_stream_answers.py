"""Answers of streams: what a server says comes out, statuses among it, and garbage is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl import errors
from edl.errors import BadAnswer, EdlError, RateLimited, RetryableError
from edl.proto import inference_pb2 as pb
from edl.proto.status import from_status, to_metadata, to_status
from edl.proto.stream_answers import answered, failed, read

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
    with pytest.raises(EdlError) as caught:
        read(failed(error, "7"))
    assert type(caught.value) is type(as_call)
    assert str(caught.value) == str(as_call)
    if isinstance(as_call, RateLimited):
        assert isinstance(caught.value, RateLimited)
        assert caught.value.retry_after_s == as_call.retry_after_s == 1.5


def test_a_failure_names_its_request() -> None:
    answer = pb.ModelStreamInferResponse.FromString(failed(RetryableError("no"), "seven"))
    assert (answer.error_message, answer.infer_response.id) == ("no", "seven")


def test_a_server_that_names_no_status_may_be_asked_again() -> None:
    bare = pb.ModelStreamInferResponse(error_message="CUDA").SerializeToString()
    with pytest.raises(RetryableError, match="CUDA"):
        read(bare)


def test_what_is_neither_labels_nor_an_error_is_no_answer() -> None:
    twice = answered(b"a") + answered(b"b")
    for nonsense in (b"", twice, b"\xff\xff", answered(b"x")[:-1], b"\x0a\x01\xff"):
        with pytest.raises(BadAnswer):
            read(nonsense)


@pytest.mark.parametrize(("status", "kind"), [("OK", BadAnswer), ("NEVER_HEARD", RetryableError)])
def test_a_status_that_cannot_be(status: str, kind: type[EdlError]) -> None:
    about = pb.ModelInferResponse(parameters={"status": pb.InferParameter(string_param=status)})
    answer = pb.ModelStreamInferResponse(error_message="so", infer_response=about)
    with pytest.raises(kind, match="so"):
        read(answer.SerializeToString())


@given(st.binary(max_size=200))
def test_garbage_raises_our_errors_only(data: bytes) -> None:
    with contextlib.suppress(EdlError):
        read(data)

"""The table of errors and status codes: every code has a meaning, and ours come back as sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from edl import errors
from edl.proto.status import PUSHBACK, from_status, to_metadata, to_status

Code = grpc.StatusCode

SENT = [
    (errors.RequestRefused, Code.INVALID_ARGUMENT),
    (errors.WrongInstance, Code.FAILED_PRECONDITION),
    (errors.RetryableError, Code.ABORTED),
    (errors.LeaseSuperseded, Code.ALREADY_EXISTS),
    (errors.Unauthenticated, Code.UNAUTHENTICATED),
    (errors.Forbidden, Code.PERMISSION_DENIED),
    (errors.RateLimited, Code.RESOURCE_EXHAUSTED),
    (errors.TeacherLost, Code.UNAVAILABLE),
    (errors.DeadlineExceeded, Code.DEADLINE_EXCEEDED),
    (errors.VersionMismatch, Code.OUT_OF_RANGE),
]


@pytest.mark.parametrize(("kind", "code"), SENT)
def test_these_come_back_as_they_were_sent(
    kind: type[errors.EdlError], code: grpc.StatusCode
) -> None:
    assert to_status(kind("why")) == (code, "why")
    back = from_status(code, "why")
    assert type(back) is kind
    assert str(back) == "why"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.WireError("cut"), Code.INVALID_ARGUMENT),
        (errors.ModelError("none"), Code.INVALID_ARGUMENT),
        (errors.RegistryUnavailable("down"), Code.UNAVAILABLE),
        (errors.BadAnswer("NaN"), Code.INTERNAL),
        (ValueError("a bug"), Code.INTERNAL),
    ],
)
def test_the_rest_of_the_tree_has_a_code(error: Exception, code: grpc.StatusCode) -> None:
    assert to_status(error)[0] is code


def test_a_foreign_error_is_named() -> None:
    assert to_status(ValueError("a bug"))[1] == "ValueError: a bug"


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK])
def test_every_code_is_an_error_with_words(code: grpc.StatusCode) -> None:
    for details in (None, ""):
        assert code.name in str(from_status(code, details))


def test_ok_is_not_an_error() -> None:
    with pytest.raises(ValueError):
        from_status(Code.OK, "")


@pytest.mark.parametrize("code", [Code.NOT_FOUND, Code.UNIMPLEMENTED])
def test_what_no_teacher_will_answer_is_refused(code: grpc.StatusCode) -> None:
    assert type(from_status(code, "")) is errors.RequestRefused


@pytest.mark.parametrize(
    "code", [Code.RESOURCE_EXHAUSTED, Code.INTERNAL, Code.UNKNOWN, Code.ABORTED]
)
def test_what_is_not_the_batchs_fault_may_be_retried(code: grpc.StatusCode) -> None:
    assert isinstance(from_status(code, ""), errors.RetryableError)


@pytest.mark.parametrize("code", [Code.DEADLINE_EXCEEDED, Code.CANCELLED])
def test_a_call_without_an_end_is_a_lost_teacher(code: grpc.StatusCode) -> None:
    assert isinstance(from_status(code, ""), errors.TeacherLost)


@pytest.mark.parametrize(("after_s", "ms"), [(0.25, "250"), (0.0, "1"), (None, None)])
def test_when_to_try_again_goes_beside_the_status(after_s: float | None, ms: str | None) -> None:
    metadata = to_metadata(errors.RateLimited("full", after_s))
    assert metadata == (() if ms is None else ((PUSHBACK, ms),))
    error = from_status(Code.RESOURCE_EXHAUSTED, "full", [("other", "1"), *metadata])
    assert isinstance(error, errors.RateLimited)
    assert error.retry_after_s == (None if ms is None else int(ms) / 1000)


@pytest.mark.parametrize("said", ["-1", "", "soon", "1.5", "\u00b2", "9" * 5000, b"x"])
def test_a_hint_that_says_nothing_is_none(said: str | bytes) -> None:
    error = from_status(Code.RESOURCE_EXHAUSTED, "full", [(PUSHBACK, said)])
    assert isinstance(error, errors.RateLimited)
    assert error.retry_after_s is None


def test_other_errors_have_nothing_beside_them() -> None:
    assert to_metadata(errors.RetryableError("x")) == to_metadata(ValueError("x")) == ()


def test_details_fit_into_a_header() -> None:
    _, message = to_status(errors.WireError("ä" * 5000 + "\ud800"))
    assert len(message.encode()) < 4096
    assert to_status(errors.WireError("\ud800"))[1] == "?"


Start = Callable[[int], grpc.Channel]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start(limit) -> a channel to an echo server; each side takes messages of `limit` bytes."""
    servers: list[grpc.Server] = []
    channels: list[grpc.Channel] = []

    def begin(limit: int) -> grpc.Channel:
        with_limit = [("grpc.max_receive_message_length", limit)]
        server = grpc.server(ThreadPoolExecutor(2), options=with_limit)
        echo = grpc.unary_unary_rpc_method_handler(lambda data, context: data * int(data[:1]))
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("s", {"Echo": echo})])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        channels.append(grpc.insecure_channel(f"127.0.0.1:{port}", options=with_limit))
        return channels[-1]

    yield begin
    for channel in channels:
        channel.close()
    for server in servers:
        server.stop(0).wait(10)


@pytest.mark.parametrize("data", [b"1" * 2000, b"9" * 500], ids=["request", "response"])
def test_a_message_above_grpcs_limit_is_refused_for_good(start: Start, data: bytes) -> None:
    call = start(1000).unary_unary("/s/Echo", bytes, bytes)
    assert call(b"1" * 500, timeout=10) == b"1" * 500
    with pytest.raises(grpc.RpcError) as caught:
        call(data, timeout=10)
    error = from_status(caught.value.code(), caught.value.details())
    assert type(error) is errors.RequestRefused, error

"""Errors and status codes, protocol versions, and offers of HTTP: there and back."""

from __future__ import annotations

from urllib.parse import quote

import grpc
import pytest

from edl.proto.protocols import OLDEST_VERSION, PROTOCOL_VERSION, check_version
from edl.proto.status import PUSHBACK, from_status, to_metadata, to_status
from edl.runtime import errors
from edl.runtime.errors import VersionMismatch

Code = grpc.StatusCode

SENT = [
    (errors.RequestRefused, Code.INVALID_ARGUMENT),
    (errors.WrongInstance, Code.FAILED_PRECONDITION),
    (errors.RetryableError, Code.ABORTED),
    (errors.PredictorCrashed, Code.DATA_LOSS),
    (errors.LeaseSuperseded, Code.ALREADY_EXISTS),
    (errors.Unauthenticated, Code.UNAUTHENTICATED),
    (errors.Forbidden, Code.PERMISSION_DENIED),
    (errors.RateLimited, Code.RESOURCE_EXHAUSTED),
    (errors.TeacherLost, Code.UNAVAILABLE),
    (errors.DeadlineExceeded, Code.DEADLINE_EXCEEDED),
    (errors.VersionMismatch, Code.OUT_OF_RANGE),
]


@pytest.mark.parametrize(("kind", "code"), SENT)
def test_error_survives_the_wire(kind: type[errors.EdlError], code: grpc.StatusCode) -> None:
    assert to_status(kind("why")) == (code, "why")
    back = from_status(code, "why")
    assert type(back) is kind
    assert str(back) == "why"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.WireError("cut"), Code.INVALID_ARGUMENT),
        (errors.ModelError("none"), Code.INVALID_ARGUMENT),
        (errors.RedisUnavailable("down"), Code.UNAVAILABLE),
        (errors.BadAnswer("NaN"), Code.INTERNAL),
        (ValueError("a bug"), Code.INTERNAL),
    ],
)
def test_the_rest_of_the_tree_has_a_code(error: Exception, code: grpc.StatusCode) -> None:
    assert to_status(error)[0] is code
    assert to_metadata(error) == ()


OF_OTHERS = {
    Code.NOT_FOUND: errors.RequestRefused,
    Code.UNIMPLEMENTED: errors.RequestRefused,
    Code.INTERNAL: errors.RetryableError,
    Code.UNKNOWN: errors.RetryableError,
    Code.CANCELLED: errors.TeacherLost,
}


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK])
def test_every_status_code_maps_to_an_error_that_names_it(code: grpc.StatusCode) -> None:
    for details in (None, ""):
        error = from_status(code, details)
        assert code.name in str(error)
        assert isinstance(error, OF_OTHERS.get(code, errors.EdlError))
    with pytest.raises(ValueError):
        from_status(Code.OK, "")


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


def test_details_fit_into_a_header() -> None:
    for character in ("x", "ä", "\U0001f600", "\ud800"):
        _, message = to_status(errors.WireError(character * 5000))
        assert message.endswith("…")
        assert len(quote(message)) < 4096, "as gRPC encodes it"
    assert to_status(errors.WireError("\ud800"))[1] == "?"


def test_peers_are_told_the_spoken_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = PROTOCOL_VERSION
    for spoken in range(OLDEST_VERSION, ours + 1):
        check_version(spoken)
    with pytest.raises(VersionMismatch, match=f"version {ours + 1}.* {ours}"):
        check_version(ours + 1)
    for none in (0, -1):
        with pytest.raises(VersionMismatch, match=f"no protocol .* at least {OLDEST_VERSION}"):
            check_version(none)
    monkeypatch.setattr("edl.proto.protocols.OLDEST_VERSION", 5)
    with pytest.raises(VersionMismatch, match="version 4; at least 5 is needed"):
        check_version(4)

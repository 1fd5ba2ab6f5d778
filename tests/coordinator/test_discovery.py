"""How managers are found, and what an error of a call to one means."""

from __future__ import annotations

import grpc
import pytest

from edl.coordinator import MemoryRegistry
from edl.coordinator.calling.discovery import call_error, live_managers
from edl.errors import (
    CoordinatorUnavailable,
    EdlError,
    Forbidden,
    LeaseSuperseded,
    RegistryUnavailable,
    RequestRefused,
    Unauthenticated,
    VersionMismatch,
)


class Failed(grpc.RpcError, grpc.Call):  # type: ignore[misc]
    """The end of a call, as gRPC raises it."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


LASTING: dict[str, type[EdlError]] = {
    "ALREADY_EXISTS": LeaseSuperseded,
    "OUT_OF_RANGE": VersionMismatch,
    "PERMISSION_DENIED": Forbidden,
    "UNAUTHENTICATED": Unauthenticated,
    "INVALID_ARGUMENT": RequestRefused,
    "NOT_FOUND": RequestRefused,
    "UNIMPLEMENTED": RequestRefused,
}


@pytest.mark.parametrize("code", [c for c in grpc.StatusCode if c is not grpc.StatusCode.OK])
def test_an_error_is_lasting_or_this_managers_own(code: grpc.StatusCode) -> None:
    meaning = call_error("h:1", Failed(code, "because"))
    assert type(meaning) is LASTING.get(code.name, CoordinatorUnavailable)
    assert "because" in str(meaning)
    if isinstance(meaning, CoordinatorUnavailable):
        assert "h:1" in str(meaning)


def test_what_is_too_large_is_so_for_every_manager() -> None:
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    assert isinstance(call_error("h:1", Failed(code, "larger than max (2 vs. 1)")), RequestRefused)
    assert isinstance(call_error("h:1", Failed(code, "too many")), CoordinatorUnavailable)


def test_an_error_that_says_nothing_is_this_managers_own() -> None:
    assert isinstance(call_error("h:1", grpc.RpcError()), CoordinatorUnavailable)


def test_live_managers_are_those_whose_leases_stand() -> None:
    registry = MemoryRegistry()
    with pytest.raises(CoordinatorUnavailable, match="edl coordinator serve"):
        live_managers(registry)
    for address in ("h:2", "h:1"):
        registry.register("managers", "", address, {"incarnation": "1"}, 30.0)
    assert live_managers(registry) == ["h:1", "h:2"]
    registry.leave("managers", "", "h:1")
    assert live_managers(registry) == ["h:2"]
    registry.set_available(False)
    with pytest.raises(RegistryUnavailable):
        live_managers(registry)

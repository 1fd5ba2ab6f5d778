"""What both ends of the control plane agree on: how managers are found, how calls to them fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..errors import CoordinatorUnavailable, EdlError, LeaseSuperseded
from ..proto.status import from_status
from .registry import Registry

if TYPE_CHECKING:
    import grpc

#: A manager that hangs is found out by pings; one that died, by its connection.
CHANNEL_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.http2.ping_timeout_ms", 3000),  # the same again, of newer releases; else a minute
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
#: Initial metadata of a subscription: seconds between reports that keep the student's lease.
BEAT_METADATA: Final = "edl-beat-s"
#: Fact of a manager: when it started, ms of the registry's clock. The oldest is asked first, so
#: that all students are at one manager.
STARTED_MS: Final = "started_ms"


def live_managers(registry: Registry) -> list[str]:
    """Addresses of the managers whose leases stand, the oldest first.

    Raises:
        RegistryUnavailable: the registry does not answer.
        CoordinatorUnavailable: there is none.
    """
    members = registry.members("managers", "")
    if not members:
        raise CoordinatorUnavailable(
            f"no service manager is registered at {registry.url}; start one with "
            f"'edl coordinator serve --redis {registry.url}'"
        )
    order = sorted(
        (len(m.facts.get(STARTED_MS, "")), m.facts.get(STARTED_MS, ""), m.member) for m in members
    )
    return [address for *_, address in order]


def call_error(address: str, error: grpc.RpcError) -> EdlError:
    """What a call to the manager at `address` that ended by `error` means."""
    import grpc

    code, details = grpc.StatusCode.UNKNOWN, ""
    if isinstance(error, grpc.Call):
        code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return LeaseSuperseded(details)
    if code in (
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNIMPLEMENTED,
    ):
        return from_status(code, details)
    return CoordinatorUnavailable(f"service manager {address} does not answer ({details or code})")


def stub(channel: grpc.Channel) -> Any:
    """The generated stub, which has no types."""
    from ..proto.coordinator_pb2_grpc import CoordinatorStub

    return CoordinatorStub(channel)  # type: ignore[no-untyped-call]

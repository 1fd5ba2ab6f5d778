"""Finds live managers, translates errors of calls to them, and names the metadata of streams."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from ...proto.security.client_connections import stub_of
from ...proto.status import from_status
from ...runtime.errors import CoordinatorUnavailable, EdlError, RequestRefused
from ..registry import Registry

if TYPE_CHECKING:
    import grpc

#: Pings detect a manager that hangs. Connections of a dead process close without them.
CHANNEL_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.http2.ping_timeout_ms", 2000),  # the same in newer gRPC, where the default is a minute
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 256 << 20),  # the status of 10,000 teachers
)
#: Seconds within which a manager must accept a stream.
_ANSWER_S: Final = 4.0
#: Initial metadata of a log stream: version of the protocol.
VERSION_METADATA: Final = "edl-protocol-version"
#: Initial metadata of a subscription: seconds between the reports that renew the student's lease.
BEAT_METADATA: Final = "edl-beat-s"
#: Metadata of a subscription in both directions: a secret by which the student proves that a later
#: stream is its own.
SECRET_METADATA: Final = "edl-secret"

#: Codes that every manager would return; others may be a problem of one manager.
_LASTING_CODES: Final = frozenset(
    {
        "ALREADY_EXISTS",
        "OUT_OF_RANGE",
        "PERMISSION_DENIED",
        "UNAUTHENTICATED",
    }
)


def live_managers(registry: Registry) -> list[str]:
    """Return the addresses of live managers, sorted.

    Raises:
        RedisUnavailable: the registry does not answer, or refuses writes.
        AccessError: the registry refuses our user or password.
        CoordinatorUnavailable: there is no live manager.
    """
    addresses = sorted(member.member for member in registry.members("managers", ""))
    if not addresses:
        registry.check_writes()  # if it refuses writes, live managers have lost their leases
        raise CoordinatorUnavailable(
            f"no service manager is registered at {registry.url}; start one with "
            f"'edl coordinator serve --redis {registry.url}'"
        )
    return addresses


def call_error(address: str, error: grpc.RpcError) -> EdlError:
    """Return the error of a failed call to the manager at `address`.

    After a CoordinatorUnavailable, another manager may accept the call. Any other error would come
    from every manager.
    """
    import grpc

    code, details = grpc.StatusCode.UNKNOWN, ""
    if isinstance(error, grpc.Call):
        code, details = error.code(), error.details() or ""
    translated = from_status(code, details)
    # Every manager refuses a request that one of them refuses, for example as too large.
    if code.name in _LASTING_CODES or isinstance(translated, RequestRefused):
        return translated
    if code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.ABORTED):
        return CoordinatorUnavailable(
            f"service manager {address} refuses the call for now: {details}"
        )
    return CoordinatorUnavailable(f"service manager {address} does not answer ({translated})")


def initial_metadata(call: Any, address: str) -> dict[str, str]:
    """Wait until the manager at `address` accepts a stream; return its initial metadata.

    Raises:
        CoordinatorUnavailable: it does not answer within 4 seconds.
        EdlError: it refuses the stream.
    """
    # gRPC has no timeout for this wait, and the system accepts connections for a stopped process.
    late = threading.Event()

    def give_up() -> None:
        late.set()
        call.cancel()

    timer = threading.Timer(_ANSWER_S, give_up)
    timer.daemon = True
    timer.start()
    try:
        metadata = dict(call.initial_metadata() or ())
    finally:
        timer.cancel()
    if late.is_set():
        raise CoordinatorUnavailable(
            f"service manager {address} accepts calls but does not answer them"
        )
    if not metadata:
        raise _refusal(call, address)
    return {name: str(value) for name, value in metadata.items()}


def _refusal(call: Any, address: str) -> EdlError:
    """Return why a stream ended before it was accepted."""
    import grpc

    try:
        next(call)
    except grpc.RpcError as error:
        return call_error(address, error)
    except StopIteration:
        pass
    return CoordinatorUnavailable(f"{address} does not answer like a service manager")


def stub(channel: grpc.Channel) -> Any:
    """Return an object with a callable for each method of a manager."""
    from ...proto import coordinator_pb2 as pb

    return stub_of(channel, pb.DESCRIPTOR.services_by_name["Coordinator"])

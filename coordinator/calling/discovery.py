"""How managers are found, how calls to them fail, and metadata that both ends use."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from ...proto.status import from_status
from ...runtime.errors import CoordinatorUnavailable, EdlError, RequestRefused
from ..registry import Registry

if TYPE_CHECKING:
    import grpc

#: Pings detect a manager that hangs; one that died closes its connections.
CHANNEL_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.http2.ping_timeout_ms", 2000),  # the same again, of newer releases; else a minute
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 256 << 20),  # the status of 10,000 teachers
)
#: Seconds until a manager must have accepted a stream.
_ANSWER_S: Final = 4.0
#: Initial metadata of a watcher's stream: version of the protocol.
VERSION_METADATA: Final = "edl-protocol-version"
#: Initial metadata of a subscription: seconds between reports that keep the student's lease.
BEAT_METADATA: Final = "edl-beat-s"
#: Metadata of a subscription in both directions: proves that a later stream is of the same student.
SECRET_METADATA: Final = "edl-secret"

#: Codes that every manager would answer; other codes may be a problem of this manager alone.
_LASTING: Final = frozenset(
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
        RegistryUnavailable: the registry does not answer, or refuses writes.
        AccessError: it refuses our user or password.
        CoordinatorUnavailable: there is none.
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
    """What a call to the manager at `address` that ended by `error` means.

    A CoordinatorUnavailable is this manager's trouble; any other error is ours, and no other
    manager would say anything else.
    """
    import grpc

    code, details = grpc.StatusCode.UNKNOWN, ""
    if isinstance(error, grpc.Call):
        code, details = error.code(), error.details() or ""
    meaning = from_status(code, details)
    # A RequestRefused is lasting whatever its code: what is too large for one is so for all.
    if code.name in _LASTING or isinstance(meaning, RequestRefused):
        return meaning
    if code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.ABORTED):
        return CoordinatorUnavailable(f"service manager {address} turns us away: {details}")
    return CoordinatorUnavailable(f"service manager {address} does not answer ({meaning})")


def begun(call: Any, address: str) -> dict[str, str]:
    """Wait until the manager at `address` has taken up a stream; returns its initial metadata.

    Raises:
        CoordinatorUnavailable: it does not answer, or not in time.
        EdlError: it refuses us.
    """
    # Nothing in gRPC bounds this wait, and a stopped process still accepts connections.
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
            f"service manager {address} takes calls and does not answer them"
        )
    if not metadata:
        raise _refusal(call, address)
    return {name: str(value) for name, value in metadata.items()}


def _refusal(call: Any, address: str) -> EdlError:
    """Why a stream ended before it began."""
    import grpc

    try:
        next(call)
    except grpc.RpcError as error:
        return call_error(address, error)
    except StopIteration:
        pass
    return CoordinatorUnavailable(f"{address} does not answer as a service manager does")


def stub(channel: grpc.Channel) -> Any:
    """The generated stub, which has no types."""
    from ...proto.coordinator_pb2_grpc import CoordinatorStub

    return CoordinatorStub(channel)  # type: ignore[no-untyped-call]

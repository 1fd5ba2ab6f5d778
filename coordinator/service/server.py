"""The gRPC server of one service manager: an asyncio loop in its own thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

import grpc

from ...proto import coordinator_pb2 as pb
from ...proto.security.access_control import AccessControl
from ...proto.security.credentials import ServerSecurity
from ...proto.security.servers import aio_server, listen
from ...runtime.addresses import check_free, join_address
from ...runtime.errors import EdlError, ProcessFailed, UnavailableError
from ..machines import MachineBoard
from ..manager.manager import Manager
from ..registry import Registry
from .call_guard import CallGuard, ManagerLimits
from .operator_handlers import UnaryHandlers, WatchHandler
from .subscribe_handler import SubscribeHandler

log = logging.getLogger(__name__)

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["Coordinator"].full_name
_START_S: Final = 10.0
#: gRPC itself refuses larger messages. Below this, our limit applies, and refusals are counted.
_RECEIVED_BYTES: Final = 8 << 20
_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # else a second manager could listen on the same port
    ("grpc.max_receive_message_length", _RECEIVED_BYTES),
    ("grpc.max_metadata_size", 8 << 10),
    ("grpc.absolute_max_metadata_size", 16 << 10),
    ("grpc.max_concurrent_streams", 4096),  # per connection
    ("grpc.http2.max_pings_without_data", 0),
    # Readers ping often, to detect a manager that hangs.
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
)


class CoordinatorServer:
    """Serves `edl.coordinator.v1.Coordinator` for one manager.

    Args:
        manager: the manager; started and stopped by the caller.
        registry: receives requests of commands such as `edl drain`, and has the log.
        security: certificates and tokens; None: neither.
        gate: admits callers; None: a gate made from `security`.
        limits: bounds sizes, rates and concurrency; None: the defaults.
        on_refused: called with the reason of each refusal that the gate does not count itself:
            forbidden, malformed, too_large, rate_limited, version or overloaded. A gate made from
            `security` calls it for its own refusals, too.
        on_ended: called in the server's thread if it ends without `stop`.
        machines: receives deployments; None: there are no machines.
    """

    def __init__(
        self,
        manager: Manager,
        registry: Registry,
        *,
        security: ServerSecurity | None = None,
        gate: AccessControl | None = None,
        limits: ManagerLimits | None = None,
        on_refused: Callable[[str], None] | None = None,
        on_ended: Callable[[], None] = lambda: None,
        machines: MachineBoard | None = None,
    ) -> None:
        limits, on_refused = limits or ManagerLimits(), on_refused or (lambda reason: None)
        self._on_refused, self._on_ended = on_refused, on_ended
        self._gate = gate or AccessControl(security, on_refused)
        self._security = security
        guard = CallGuard(self._gate, limits, on_refused)
        self._subscribing = SubscribeHandler(manager, guard, limits)
        self._watching = WatchHandler(registry, guard, limits)
        self._calls = UnaryHandlers(manager, registry, guard, limits, machines)
        self._pings = _pings(limits.ping_s)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._grace_s = 0.0
        self._thread: threading.Thread | None = None

    def start(self, host: str, port: int) -> int:
        """Listen; return the port, which the system chooses if `port` is 0.

        Raises:
            AddressInUse: another process listens on the address.
            UsageError: `host` is no address of this machine, or a certificate cannot be used.
            ProcessFailed: gRPC did not start in time.
            UnavailableError: gRPC cannot listen for another reason.
        """
        check_free(host, port)
        bound: Future[int] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(join_address(host, port), bound), name="edl-grpc", daemon=True
        )
        self._thread.start()
        try:
            return bound.result(_START_S)
        except TimeoutError:
            raise ProcessFailed(f"gRPC did not start to listen within {_START_S:g} s") from None

    def stop(self, grace_s: float = 1.0) -> None:
        """End all streams, so that their students choose another manager. Idempotent.

        Calls in progress have `grace_s` seconds to finish.
        """
        if self._thread is None:
            return
        if self._loop is not None and self._stopping is not None:
            self._grace_s = grace_s
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(grace_s + 5.0)

    def _run(self, address: str, bound: Future[int]) -> None:
        """Run the loop. `start` raises an error that occurs before the server listens."""
        try:
            asyncio.run(self._serve(address, bound))
        except BaseException as error:
            if bound.done():
                log.exception("the gRPC server ended")
            elif isinstance(error, EdlError):
                bound.set_exception(error)
            else:
                bound.set_exception(UnavailableError(f"gRPC cannot listen on {address}: {error!r}"))

    async def _serve(self, address: str, bound: Future[int]) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        server = aio_server(
            _SERVICE,
            self._methods(),
            (*_OPTIONS, *self._pings),
            on_unknown=lambda: self._on_refused("malformed"),
        )
        bound_port = listen(server, address, self._security, self._gate)
        await server.start()
        bound.set_result(bound_port)
        rechecking = asyncio.create_task(self._subscribing.recheck())
        ended = asyncio.create_task(server.wait_for_termination())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((stopping, ended), return_when=asyncio.FIRST_COMPLETED)
        if not self._stopping.is_set():
            stopping.cancel()
            log.error("the gRPC server ended by itself")
            self._on_ended()
        rechecking.cancel()
        self._subscribing.end_all()
        self._watching.stop()
        await server.stop(self._grace_s)
        await ended  # cancelling it would cancel the server's own future

    def _methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        # No (de)serializers: we refuse malformed messages, which gRPC would only log.
        return {
            "Subscribe": grpc.stream_stream_rpc_method_handler(self._subscribing.handle),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watching.handle),
            **self._calls.handlers(),
        }


def _pings(after_s: float) -> tuple[tuple[str, int], ...]:
    """Return options that detect a peer whose machine has failed."""
    answer_ms = int(after_s * 500)
    return (
        ("grpc.keepalive_time_ms", int(after_s * 1000)),
        ("grpc.keepalive_timeout_ms", answer_ms),
        ("grpc.http2.ping_timeout_ms", answer_ms),  # the same in newer gRPC
    )

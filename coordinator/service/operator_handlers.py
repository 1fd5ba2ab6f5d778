"""The methods for people: Status, Drain, Upgrade, Deploy; and Watch, which streams the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import Message

from ...proto import coordinator_pb2 as pb
from ...proto.protocols import PROTOCOL_VERSION
from ...proto.security.access_control import Caller
from ...runtime.errors import (
    AccessError,
    RedisUnavailable,
    UnavailableError,
    UsageError,
)
from .. import operations
from ..calling.discovery import VERSION_METADATA
from ..machines import MachineBoard
from ..manager.manager import Manager
from ..manager.messages import event_message
from ..manager.overview import own_part
from ..manager.student_sessions import owns
from ..registry import LogEntry, Registry
from ..registry.schema import check_service
from ..store.records import WrongKeyType, log_position
from .call_guard import CallGuard, ConcurrencyLimit, Context, ManagerLimits, RefusedByGate

_T = TypeVar("_T")

#: Maximum number of concurrent status calls with `own_only`, in total and with one credential.
_OWN_CALLS, _OWN_CALLS_EACH = 8, 2


class UnaryHandlers:
    """Handles unary calls, each in a worker thread.

    Args:
        manager: returns the status.
        registry: receives drain requests and content plans.
        guard: admits callers.
        limits: bounds concurrent calls.
        machines: receives deployments; None: there are no machines.
    """

    def __init__(
        self,
        manager: Manager,
        registry: Registry,
        guard: CallGuard,
        limits: ManagerLimits,
        machines: MachineBoard | None = None,
    ) -> None:
        self._manager = manager
        self._registry = registry
        self._machines = machines
        self._guard = guard
        self._unread_calls = ConcurrencyLimit(
            "calls without a request", limits.silent, limits.silent // 2
        )
        self._calls = ConcurrencyLimit("calls", limits.calls, limits.calls)
        # Separate, so that students cannot block administrators.
        self._own_calls = ConcurrencyLimit(
            "calls of students for their status", _OWN_CALLS, _OWN_CALLS_EACH
        )

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """Return the handler of each method."""
        return {
            "Status": self._handler(("viewer", "student"), pb.StatusRequest, self._status),
            "Drain": self._handler(("admin",), pb.DrainRequest, self._drain),
            "Upgrade": self._handler(("admin",), pb.UpgradeRequest, self._upgrade),
            "Deploy": self._handler(("admin",), pb.DeployRequest, self._deploy),
        }

    def _handler(
        self,
        roles: Sequence[str],
        kind: type[Message],
        answer: Callable[[Any, Caller], Message],
    ) -> grpc.RpcMethodHandler[Any, Any]:
        # Served as a stream, which is the same on the wire, to admit the caller before its message
        # is read.
        async def call(requests: AsyncIterator[bytes], context: Context) -> None:
            caller = await self._guard.admit(context, *roles)
            try:
                with self._unread_calls.hold(caller.principal):
                    request = await self._guard.first(requests, kind())
                limit, principal = self._calls, ""
                if getattr(request, "own_only", False):
                    limit, principal = self._own_calls, caller.principal
                # Count the call only after its request has arrived: silent callers block no others.
                with limit.hold(principal):
                    reply = await _in_thread(answer, request, caller)
                await self._guard.write(context, reply)
            except Exception as error:
                await self._guard.refuse(context, error)

        return grpc.stream_stream_rpc_method_handler(call)

    def _status(self, request: pb.StatusRequest, caller: Caller) -> pb.MeshStatus:
        if not request.own_only:
            self._guard.check_role(caller, "viewer")
            return self._manager.status(request.service, request.max_members)

        def owned(service: str) -> set[str]:
            students = self._registry.members("students", service)
            return {member.member for member in students if owns(caller.principal, member.facts)}

        return own_part(self._manager.status(request.service), owned, request.max_members)

    def _drain(self, request: pb.DrainRequest, _: Caller) -> pb.DrainReply:
        return pb.DrainReply(
            teachers=operations.drain(
                self._registry,
                service=request.service,
                teacher_id=request.teacher_id,
                host=request.host,
            )
        )

    def _upgrade(self, request: pb.UpgradeRequest, _: Caller) -> pb.UpgradeReply:
        return pb.UpgradeReply(
            summary=operations.upgrade(
                self._registry, request.service, request.content_id, request.at
            )
        )

    def _deploy(self, request: pb.DeployRequest, _: Caller) -> pb.DeployReply:
        if self._machines is None:
            raise UsageError("this service manager has no machines to deploy on")
        if request.withdraw:
            return pb.DeployReply(summary=operations.undeploy(self._machines, request.service))
        if request.scale:
            summary = operations.scale(self._machines, request.service, request.min, request.max)
            return pb.DeployReply(summary=summary)
        deployment = operations.parse_deploy_request(request)
        return pb.DeployReply(summary=operations.deploy(self._machines, deployment))


async def _in_thread(work: Callable[..., _T], *args: Any) -> _T:
    """Run blocking work in a thread.

    Raises:
        RedisUnavailable: the registry does not answer, or refuses this manager.
        RefusedByGate: `work` refused the caller.
    """
    try:
        return await asyncio.to_thread(work, *args)
    except RefusedByGate:
        raise
    except AccessError as error:
        raise RedisUnavailable(f"Redis refuses this service manager: {error}") from None


log = logging.getLogger(__name__)

#: Seconds between two reads of the logs for a watcher, if there are at most this many watchers. If
#: there are more, each waits longer, up to `_CHECK_S`, so that 20 cause no more reads than 4.
_READ_PAUSE_S, _FAST_WATCHERS = 0.2, 4
#: Longest pause between two reads, in seconds. After each pause, the credential is checked again.
_CHECK_S: Final = 1.0

#: Name of a service and an entry of its log.
ServiceEntry = tuple[str, LogEntry]


class WatchHandler:
    """Sends entries of the log to watchers.

    Args:
        registry: has the logs.
        guard: admits callers.
        limits: bounds the number of watchers.
    """

    def __init__(self, registry: Registry, guard: CallGuard, limits: ManagerLimits) -> None:
        self._registry = registry
        self._guard = guard
        self._streams = ConcurrencyLimit(
            "watchers of the log", limits.watchers, limits.watchers_per_principal
        )
        self._stopped = asyncio.Event()
        self._answering = True
        self._unreadable: set[str] = set()  # services whose log could not be read

    def stop(self) -> None:
        """End all streams."""
        self._stopped.set()

    async def handle(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Serve one call."""
        caller = await self._guard.admit(context, "viewer")
        try:
            with self._streams.hold(caller.principal):
                request = await self._guard.first(requests, pb.WatchRequest())
                if request.service:
                    check_service(request.service)
                await self._serve(request, context)
        except Exception as error:
            await self._guard.refuse(context, error)

    async def _serve(self, request: pb.WatchRequest, context: Context) -> None:
        # Sent at once, to show the caller that this manager does not hang.
        await context.send_initial_metadata(((VERSION_METADATA, str(PROTOCOL_VERSION)),))
        sent, entries = await _in_thread(self._read, request.service, {}, request.last)
        while True:
            for service, entry in entries:
                await self._guard.write(context, event_message(service, entry))
            if not request.follow:
                return
            await self._pause()
            self._guard.check_again(context, "viewer")
            entries = []
            try:
                sent, entries = await _in_thread(self._read, request.service, sent)
                self._answering = True
            except RedisUnavailable as error:  # it may answer again
                if self._answering:
                    log.warning("%s; watchers of the log wait", error)
                self._answering = False

    async def _pause(self) -> None:
        """Wait until the next read. Raises UnavailableError if this manager stops."""
        pause_s = min(_CHECK_S, _READ_PAUSE_S * max(1.0, self._streams.taken / _FAST_WATCHERS))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), pause_s)
        if self._stopped.is_set():
            raise UnavailableError("this service manager stops: use another")

    def _read(
        self, service: str, sent: Mapping[str, str], last: int = 0
    ) -> tuple[dict[str, str], list[ServiceEntry]]:
        """Return the log entries that were not sent yet, by time. Blocks.

        Args:
            service: name of the service; empty: all.
            sent: service -> id of its last sent entry; of a service without one, all are returned.
            last: return only the `last` latest entries; 0: all.

        Returns:
            `sent`, updated for these entries, and the entries.
        """
        services = [service] if service else self._registry.services_with_log()
        logs: dict[str, list[LogEntry]] = {}
        for name in services:
            try:
                logs[name] = self._registry.events(name, sent.get(name, ""), last)
                self._unreadable.discard(name)
            except WrongKeyType as error:  # the logs of other services may be readable
                if service:
                    raise
                if name not in self._unreadable:
                    log.warning("service %s: its log is not sent: %s", name, error)
                self._unreadable.add(name)
        read = {name: entries[-1].id for name, entries in logs.items() if entries}
        merged = [(name, entry) for name, entries in logs.items() for entry in entries]
        merged.sort(key=lambda item: log_position(item[1].id))  # stable within one service
        return {**sent, **read}, merged[-last:]

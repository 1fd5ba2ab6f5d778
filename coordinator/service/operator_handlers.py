"""The methods of operators: Status, Drain, Upgrade and Deploy, and Watch, which streams the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import Message

from ...proto import coordinator_pb2 as pb
from ...proto.protocols import PROTOCOL_VERSION
from ...proto.security import Caller
from ...runtime.errors import (
    AccessError,
    RateLimited,
    RedisUnavailable,
    UnavailableError,
    UsageError,
)
from .. import operations
from ..calling.discovery import VERSION_METADATA
from ..machines import MachineBoard
from ..manager.messages import event_message
from ..manager.overview import own_part
from ..manager.student_sessions import owns
from ..registry import LogEntry, Registry
from ..registry.schema import check_service
from ..store.records import log_position
from .call_guard import CallGuard, Context, ManagerLimits, Places, RefusedByGate
from .subscribe_handler import ServedManager

_T = TypeVar("_T")

#: Most concurrent status calls with `own_only`, in total and with one credential.
_OWN, _OWN_EACH = 8, 2


class UnaryHandlers:
    """Handles unary calls, each in a worker thread.

    Args:
        manager: returns the status.
        registry: receives orders.
        guard: admits callers.
        limits: bounds concurrent calls.
        machines: receives deployments; None: there are no machines.
    """

    def __init__(
        self,
        manager: ServedManager,
        registry: Registry,
        guard: CallGuard,
        limits: ManagerLimits,
        machines: MachineBoard | None = None,
    ) -> None:
        self._manager = manager
        self._registry = registry
        self._machines = machines
        self._guard = guard
        self._opened = Places("calls without a request", limits.silent, limits.silent // 2)
        self._answered = Places("calls", limits.calls, limits.calls)
        # Separate, so that students cannot block administrators.
        self._own = Places("calls of students for their status", _OWN, _OWN_EACH)

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
                with self._opened.one(caller.principal):
                    request = await self._guard.first(requests, kind())
                own = getattr(request, "own_only", False)
                places, principal = (self._own, caller.principal) if own else (self._answered, "")
                # Only once the request is here, so that silent callers block nobody.
                with places.one(principal):
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
            return {one.member for one in students if owns(caller.principal, one.facts)}

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
        wanted = operations.parse_deploy_request(request)
        return pb.DeployReply(summary=operations.deploy(self._machines, wanted))


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

#: Seconds between reads of the logs.
_LOOK_S: Final = 0.2
#: A log that was not watched before is read from this many milliseconds before the former read on,
#: so that a new watcher misses no entry.
_OVERLAP_MS: Final = 2000
#: Most unsent events of a watcher: twice what the log of one service holds.
_BEHIND: Final = 20_000

#: Name of a service and an entry of its log.
ServiceEntry = tuple[str, LogEntry]


class Listener:
    """Unsent events of one watcher of `service`; empty: of all services."""

    def __init__(self, service: str) -> None:
        self.service = service
        self._queue: asyncio.Queue[ServiceEntry | None] = asyncio.Queue(_BEHIND + 1)
        self._lost = False

    def put(self, event: ServiceEntry) -> None:
        """Add an event. End the stream of a watcher that is too far behind, to bound memory."""
        if self._queue.qsize() < _BEHIND:
            self._queue.put_nowait(event)
        else:
            self._lost = True

    def end(self) -> None:
        """End the stream. The queue has room for this."""
        if not self._queue.full():
            self._queue.put_nowait(None)

    async def next(self) -> ServiceEntry:
        """Wait for the next event and return it.

        Raises:
            RateLimited: the watcher is too slow, and events were dropped.
            UnavailableError: this manager stops.
        """
        if self._lost:
            raise RateLimited(f"this watcher is {_BEHIND} events behind the log: start again")
        event = await self._queue.get()
        if event is None:
            raise UnavailableError("this service manager stops: use another")
        return event


class LogTail:
    """Reads the logs of all watched services while there are watchers. Only for one event loop.

    Args:
        registry: has the logs.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._listeners: set[Listener] = set()
        self._after: dict[str, str] = {}
        self._begin = ""
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def listening(self, service: str) -> Iterator[Listener]:
        """Receive new entries, and those of the last seconds."""
        listener = Listener(service)
        self._listeners.add(listener)
        if self._task is None or self._task.done():
            self._after, self._begin = {}, ""
            self._task = asyncio.create_task(self._run())
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    async def stop(self) -> None:
        """Stop reading and end all streams."""
        for listener in self._listeners:
            listener.end()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        answering = True
        while self._listeners:
            try:
                for event in await _in_thread(
                    self._look, {each.service for each in self._listeners}
                ):
                    self._pass_on(event)
                answering = True
            except RedisUnavailable as error:  # it may come back
                if answering:
                    log.warning("%s; watchers of the log wait", error)
                answering = False
            except Exception:
                log.exception("the log could not be read because of a bug")
            await asyncio.sleep(_LOOK_S)

    def _pass_on(self, event: ServiceEntry) -> None:
        for listener in self._listeners:
            if listener.service in ("", event[0]):
                listener.put(event)

    def _look(self, watched: set[str]) -> list[ServiceEntry]:
        """Return the entries since the last read. Blocks."""
        now = f"{max(0, self._registry.time_ms() - _OVERLAP_MS)}-0"
        services = watched - {""}
        if "" in watched:
            services |= set(self._registry.services_with_log())
        after: dict[str, str] = {}
        found: list[ServiceEntry] = []
        for service in services:
            after[service] = self._after.get(service, self._begin or now)
            if entries := self._registry.events(service, after[service]):
                after[service] = entries[-1].id
            found += [(service, entry) for entry in entries]
        self._after, self._begin = after, now
        return in_order(found)


def in_order(events: list[ServiceEntry]) -> list[ServiceEntry]:
    """Sort by time; entries of one service keep their order."""
    return sorted(events, key=lambda each: log_position(each[1].id))


#: Seconds within which a stream ends after its credential was withdrawn.
_CHECK_S: Final = 1.0


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
        self._tail = LogTail(registry)
        self._places = Places("watchers of the log", limits.watchers, limits.watchers_per_principal)

    async def stop(self) -> None:
        """Stop reading the log."""
        await self._tail.stop()

    async def handle(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Serve one call."""
        caller = await self._guard.admit(context, "viewer")
        try:
            with self._places.one(caller.principal):
                request = await self._guard.first(requests, pb.WatchRequest())
                if request.service:
                    check_service(request.service)
                await self._serve(request, context)
        except Exception as error:
            await self._guard.refuse(context, error)

    async def _serve(self, request: pb.WatchRequest, context: Context) -> None:
        # At once, to show the caller that this manager does not hang.
        await context.send_initial_metadata(((VERSION_METADATA, str(PROTOCOL_VERSION)),))
        if not request.follow:
            _, past = await _in_thread(self._past, request)
            await self._write(context, past)
            return
        with self._tail.listening(request.service) as listener:
            # Listening first, so that no entry between both is missed.
            sent, past = await _in_thread(self._past, request)
            before_all = log_position("")
            await self._write(context, past)
            while True:
                self._guard.check_again(context, "viewer")
                try:
                    async with asyncio.timeout(_CHECK_S):
                        service, entry = await listener.next()
                except TimeoutError:
                    continue
                place = log_position(entry.id)
                if place > sent.get(service, before_all):
                    sent[service] = place
                    await self._write(context, [(service, entry)])

    def _past(
        self, request: pb.WatchRequest
    ) -> tuple[dict[str, tuple[int, int]], list[ServiceEntry]]:
        """Return the position of the last entry of each log, and the entries to send."""
        services = [request.service] if request.service else self._registry.services_with_log()
        logs = {each: self._registry.events(each, last=request.last) for each in services}
        read = {each: log_position(log[-1].id) for each, log in logs.items() if log}
        events = [(service, entry) for service, log in logs.items() for entry in log]
        return read, in_order(events)[-request.last :]  # 0: all

    async def _write(self, context: Context, events: Iterable[ServiceEntry]) -> None:
        for service, entry in events:
            await self._guard.write(context, event_message(service, entry))

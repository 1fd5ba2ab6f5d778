"""The methods Status, Drain, Upgrade and Deploy: one request, one reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message

from ...proto import coordinator_pb2 as pb
from ...proto.security import Caller
from ...runtime.errors import AccessError, RegistryUnavailable, UsageError
from .. import operations
from ..machines import MachineBoard
from ..manager.overview import own_part
from ..manager.student_sessions import owns
from ..registry import Registry
from .call_guard import CallGuard, Context, ManagerLimits, Places, RefusedByGate
from .subscribe_handler import ServedManager

_T = TypeVar("_T")

#: Unary calls are handled as streams, which they are on the wire, so that a caller is admitted
#: before its message is read.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

#: Most concurrent calls of all students, and of one student.
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

    def handlers(self) -> Mapping[str, Handler]:
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
    ) -> Handler:
        async def call(requests: AsyncIterator[bytes], context: Context) -> None:
            caller = await self._guard.admit(context, *roles)
            try:
                with self._opened.one(caller.principal):
                    request = await self._guard.first(requests, kind())
                own = getattr(request, "own_only", False)
                places, principal = (self._own, caller.principal) if own else (self._answered, "")
                # Only once the request is here, so that silent callers block nobody.
                with places.one(principal):
                    reply = await in_thread(answer, request, caller)
                await context.write(reply.SerializeToString())
            except Exception as error:
                await self._guard.refuse(context, error)

        return grpc.stream_stream_rpc_method_handler(call)

    def _status(self, request: pb.StatusRequest, caller: Caller) -> pb.MeshStatus:
        if not request.own_only:
            self._guard.check_role(caller, "viewer")
            return self._manager.status(request.service, request.max_members)
        whole = self._manager.status(request.service)
        return own_part(whole, self._owned_by(caller), request.max_members)

    def _owned_by(self, caller: Caller) -> Callable[[str], set[str]]:
        """Return a function that returns the ids of a service's students of this credential."""

        def owned(service: str) -> set[str]:
            students = self._registry.members("students", service)
            return {one.member for one in students if owns(caller.principal, one.facts)}

        return owned

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
        wanted = operations.asked_by(request)
        return pb.DeployReply(summary=operations.deploy(self._machines, wanted))


async def in_thread(work: Callable[..., _T], *args: Any) -> _T:
    """Run blocking work in a thread.

    Raises:
        RegistryUnavailable: the registry does not answer, or refuses this manager.
        RefusedByGate: `work` refused the caller.
    """
    try:
        return await asyncio.to_thread(work, *args)
    except RefusedByGate:
        raise
    except AccessError as error:
        raise RegistryUnavailable(f"Redis refuses this service manager: {error}") from None

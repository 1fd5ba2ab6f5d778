"""Both servers of the mesh in the test's process, and how a call to each of them ends."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import grpc

from edl.coordinator.config import ManagerConfig
from edl.coordinator.limits import Limits
from edl.coordinator.machines.memory_board import MemoryMachines
from edl.coordinator.manager.manager import Manager
from edl.coordinator.registry.memory_registry import MemoryRegistry
from edl.coordinator.service.server import CoordinatorServer
from edl.proto import coordinator_pb2 as pb
from edl.proto.security import ClientSecurity, Gate, ServerSecurity, open_channel
from edl.tests.hostile.inputs import Input, report

TIMEOUT_S = 30.0
#: Who follows the log is never done; all others are long before that.
_WATCHED_S = 5.0
#: Kept in the log: who asks for all of it thousands of times is not what takes most of the time.
_EVENTS = 100
CONTROL = "edl.coordinator.v1.Coordinator"
DATA = "inference.GRPCInferenceService"

Code = grpc.StatusCode


class ControlPlane:
    """A service manager over a registry in memory, with one teacher in service `calm`."""

    def __init__(
        self,
        security: ServerSecurity | None = None,
        limits: Limits | None = None,
        patience_s: float = 10.0,
    ) -> None:
        self.refused: Counter[str] = Counter()
        self.registry = MemoryRegistry(events=_EVENTS)
        config = ManagerConfig(admission=False)
        self.registry.register("teachers", "calm", "t1", _facts(), 3600.0)
        self._manager = Manager(self.registry, config, address="here")
        self._manager.start()
        gate = Gate(security, self._count, patience_s=patience_s)
        self._server = CoordinatorServer(
            self._manager,
            self.registry,
            security=security,
            gate=gate,
            limits=limits,
            on_refused=self._count,
            machines=MemoryMachines(),
        )
        self.address = f"127.0.0.1:{self._server.start('127.0.0.1', 0)}"

    def _count(self, reason: str) -> None:
        self.refused[reason] += 1

    def close(self) -> None:
        self._server.stop(0)
        self._manager.stop()
        self.registry.close()


class GoodStudent:
    """Subscribes anew each time, and is given its teacher."""

    def __init__(self, address: str, security: ClientSecurity | None = None) -> None:
        self._channel: Any = open_channel(address, security)
        self._incarnation = 0

    def __call__(self) -> None:
        self._incarnation += 1
        first = report(
            service="calm", student_id="good/0", incarnation=self._incarnation, teachers=[], want=1
        )
        over = threading.Event()

        def reports() -> Iterator[bytes]:
            yield first.SerializeToString()
            over.wait(TIMEOUT_S)

        call = self._channel.stream_stream(f"/{CONTROL}/Subscribe")(reports(), timeout=TIMEOUT_S)
        try:
            for data in call:
                assignment = pb.Assignment.FromString(data)
                if [teacher.teacher_id for teacher in assignment.teachers] == ["t1"]:
                    return
            raise AssertionError("the stream ended without an assignment")
        finally:
            over.set()
            call.cancel()

    def close(self) -> None:
        self._channel.close()


def ends_of(channel: Any, service: str, inputs: Iterable[Input]) -> list[tuple[Code, str]]:
    """How a call for each input ends, all made at once."""
    calls = [
        channel.unary_stream(f"/{service}/{one.method}")(
            one.message, timeout=_WATCHED_S if one.method == "Watch" else TIMEOUT_S
        )
        for one in inputs
    ]
    return [_end(call) for call in calls]


def _end(call: Any) -> tuple[Code, str]:
    try:
        for _ in call:
            pass
    except grpc.RpcError:
        pass
    return call.code(), call.details() or ""


def _facts() -> dict[str, str]:
    return {
        "incarnation": "1",
        "address": "127.0.0.1:9",
        "protocol": "oip",
        "content_id": "c",
        "state": "serving",
        "slots": "4",
        "lanes": "1",
    }

"""Both servers of the mesh in the test's process, good clients of them, and storms of bad ones."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from edl.coordinator.config import ManagerConfig
from edl.coordinator.limits import Limits
from edl.coordinator.machines.memory_board import MemoryMachines
from edl.coordinator.manager.manager import Manager
from edl.coordinator.registry.memory_registry import MemoryRegistry
from edl.coordinator.service.server import CoordinatorServer
from edl.proto import coordinator_pb2 as pb
from edl.proto.security import ClientSecurity, Gate, ServerSecurity, open_channel
from edl.tests.hostile.inputs import Input, report

TIMEOUT_S = 60.0
#: 2,000 inputs in `make test-system`, 20,000 in `make nightly`.
AT_ONCE = 10
#: Of a call that follows the log, which is never done.
_WATCHED_S = 2.0
# Kept small, so that thousands of requests for the whole log stay cheap.
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
    ) -> None:
        self.refused: Counter[str] = Counter()
        self.registry = MemoryRegistry(events=_EVENTS)
        config = ManagerConfig(admission=False)
        self.registry.register("teachers", "calm", "t1", _facts(), 3600.0)
        self._manager = Manager(self.registry, config, address="here")
        self._manager.start()
        gate = Gate(security, self._count)
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
    with contextlib.suppress(grpc.RpcError):
        for _ in call:
            pass
    return call.code(), call.details() or ""


@contextmanager
def served_throughout(ask: Callable[[], object]) -> Iterator[None]:
    """Call `ask` again and again while the body runs; every call must succeed."""
    # Servers, storm and good client share one interpreter: with 5 ms for each of their turns, most
    # of the time would be waits for a turn.
    turn_s = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)
    over = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while True:
                ask()
                if over.wait(0.01):  # leaves the processor to the storm
                    return
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work, name="good-client")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(turn_s)
    if failures:
        raise AssertionError(f"a good client was not served: {failures[0]!r}") from failures[0]


_T = TypeVar("_T")


def storm(inputs: st.SearchStrategy[_T], hit: Callable[[list[_T]], None]) -> None:
    """Hit with thousands of inputs, `AT_ONCE` at once; a failure shows its input."""

    @settings(
        settings(),
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(inputs, min_size=AT_ONCE, max_size=AT_ONCE))
    def strike(batch: list[_T]) -> None:
        hit(batch)

    with warnings.catch_warnings():
        # Good clients draw their pauses from `random` meanwhile, in threads of their own.
        warnings.filterwarnings("ignore", message="Do not use the `random` module inside strat")
        strike()


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

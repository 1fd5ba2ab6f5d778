"""Both servers of the mesh in the test's process, good clients of them, and storms of bad ones."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from edl.coordinator.calling.discovery import SECRET_METADATA
from edl.coordinator.config import ManagerConfig
from edl.coordinator.machines import MachineBoard
from edl.coordinator.manager.manager import Manager
from edl.coordinator.registry import Registry
from edl.coordinator.service.call_guard import ManagerLimits
from edl.coordinator.service.server import CoordinatorServer
from edl.coordinator.store.memory_store import MemoryStore
from edl.proto import coordinator_pb2 as pb
from edl.proto.security.access_control import AccessControl
from edl.proto.security.credentials import ClientSecurity, ServerSecurity
from edl.tests.coordinator.calls import open_stream
from edl.tests.hostile.inputs import TOO_LARGE, Input, report
from edl.tests.waiting import DEADLINE_S

#: 2,000 inputs in `make test-system`, 20,000 in `make nightly`.
AT_ONCE = 10
#: Of a call that follows the log, which is never done.
_WATCHED_S = 2.0
# Kept small, so that thousands of requests for the whole log stay cheap.
_EVENTS = 100
DATA = "inference.GRPCInferenceService"

Code = grpc.StatusCode


class ControlPlane:
    """A service manager over a registry in memory, with one teacher in service `calm`."""

    def __init__(
        self, security: ServerSecurity | None = None, limits: ManagerLimits | None = None
    ) -> None:
        self.refused: Counter[str] = Counter()
        self.registry = Registry(MemoryStore(), events_kept=_EVENTS)
        config = ManagerConfig(admission=False)
        facts = {
            "incarnation": "1", "address": "127.0.0.1:9", "protocol": "oip", "content_id": "c",
            "state": "serving", "slots": "4", "lanes": "1",
        }  # fmt: skip
        self.registry.register("teachers", "calm", "t1", facts, 3600.0)
        self._manager = Manager(self.registry, config, address="here")
        self._manager.start()
        self._server = CoordinatorServer(
            self._manager,
            self.registry,
            security=security,
            gate=AccessControl(security, self._count),
            limits=limits,
            on_refused=self._count,
            machines=MachineBoard(MemoryStore()),
        )
        self.address = f"127.0.0.1:{self._server.start('127.0.0.1', 0)}"

    def _count(self, reason: str) -> None:
        self.refused[reason] += 1

    def close(self) -> None:
        self._server.stop(0)
        self._manager.stop()
        self.registry.close()


def subscribed(
    address: str, security: ClientSecurity | None, secret: str = "", **fields: Any
) -> AbstractContextManager[tuple[Any, threading.Event]]:
    """A stream of a student of service `calm` that has sent its first report."""
    metadata = ((SECRET_METADATA, secret),) if secret else ()
    first = report(**{"service": "calm", "student_id": "job/0", "teachers": [], **fields})
    return open_stream(address, first, metadata=metadata, security=security)


def teacher_of(call: Any) -> str:
    """The id of the first teacher that a subscription is given."""
    for data in call:
        for teacher in pb.Assignment.FromString(data).teachers:
            return teacher.teacher_id
    raise AssertionError("the stream ended without an assignment")


def good_student(address: str, security: ClientSecurity | None = None) -> Callable[[], None]:
    """Subscribes anew each time, and is given its teacher."""
    incarnations = count(1)

    def ask() -> None:
        number = next(incarnations)
        with subscribed(address, security, student_id="good/0", incarnation=number) as (call, _):
            assert teacher_of(call) == "t1"

    return ask


def ends_of(channel: Any, service: str, inputs: Iterable[Input]) -> list[tuple[Code, str]]:
    """How a call for each input ends, all made at once."""
    calls = [
        channel.unary_stream(f"/{service}/{one.method}")(
            one.message, timeout=_WATCHED_S if follows_log(one) else DEADLINE_S
        )
        for one in inputs
    ]
    return [(end(call), call.details() or "") for call in calls]


def follows_log(one: Input) -> bool:
    """Whether an input may ask for events without end."""
    if one.method != "Watch" or one.message is TOO_LARGE:
        return False
    try:
        return pb.WatchRequest.FromString(one.message).follow
    except DecodeError:
        return False


def end(call: Any) -> Code:
    with contextlib.suppress(grpc.RpcError):
        for _ in call:
            pass
    code: Code = call.code()
    return code


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
        settings(), phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.lists(inputs, min_size=AT_ONCE, max_size=AT_ONCE))
    def strike(batch: list[_T]) -> None:
        hit(batch)

    with warnings.catch_warnings():
        # Good clients draw their pauses from `random` meanwhile, in threads of their own.
        warnings.filterwarnings("ignore", message="Do not use the `random` module inside strat")
        strike()

"""A teacher's server in the test's own process, and a client of it."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import pytest

from edl.proto import inference_pb2 as pb
from edl.proto import tensors
from edl.proto.clients import LabelResponse
from edl.proto.security.access_control import AccessControl
from edl.proto.security.client_connections import open_channel
from edl.proto.security.credentials import ClientSecurity
from edl.teacher.config import ServerConfig
from edl.teacher.identity import InstanceIdentity
from edl.teacher.recorder import Recorder, RequestTiming
from edl.teacher.servers.server import TeacherServer
from edl.teacher.servers.servicer import InferenceServicer
from edl.teacher.servers.shared_regions import SharedMemoryRegions
from edl.tests.proto.strategies import encoded_request
from edl.tests.teacher.fakes import FakeLabeller, array
from edl.tests.waiting import DEADLINE_S, wait_until

WAIT_S = DEADLINE_S
SERVICE = "inference.GRPCInferenceService"


class Bench:
    """A server on a free port, of a model that is a function; `config` as in `ServerConfig`."""

    def __init__(
        self,
        client: ClientSecurity | None = None,
        on_ended: Callable[[], None] = lambda: None,
        **config: Any,
    ) -> None:
        self.identity = InstanceIdentity("resnet", "t1", 41)
        self.labeller = FakeLabeller()
        self.at_end = ExitStack()  # what is to be done before it stops
        self.recorder = Recorder()
        memory = SharedMemoryRegions(enabled=config.get("allow_system_shm", False))
        both: Any = self.labeller
        self.servicer = InferenceServicer(self.identity, both, both, self.recorder, memory)
        self.server = TeacherServer(
            ServerConfig(**{"slots": 2, "max_message_bytes": 1 << 20, **config}),
            self.servicer,
            AccessControl(config.get("security"), self.recorder.count_refusal),
            self.recorder,
            on_ended,
        )
        self._now, self._skipped_s = self.loop.time, 0.0
        self.loop.time = lambda: self._now() + self._skipped_s  # type: ignore[method-assign]
        self.server.start()
        self.address = f"127.0.0.1:{self.server.port}"
        self.channel = open_channel(self.address, client)

    def call(self, method: str, timeout_s: float = WAIT_S, **fields: Any) -> Any:
        """The message that answers a request with these fields."""
        request, response = (getattr(pb, method + kind) for kind in ("Request", "Response"))
        data = request(**fields).SerializeToString()
        return response.FromString(self.method(method)(data, timeout=timeout_s))

    def method(self, name: str = "ModelInfer") -> Any:
        """A method that takes and gives bytes."""
        return self.channel.unary_unary(f"/{SERVICE}/{name}", None, None)

    def infer_bytes(self, data: bytes) -> bytes:
        answer = self.method()(data, timeout=WAIT_S)
        assert isinstance(answer, bytes)
        return answer

    def request(self, rows: int = 3, **request: Any) -> bytes:
        return encoded_request(
            **{"model_name": "resnet", "inputs": {"x": array(rows, 4)}, **request}
        )

    def infer(self, rows: int = 3, **request: Any) -> LabelResponse:
        return tensors.decode_response(self.infer_bytes(self.request(rows, **request)))

    def count(self, name: str, **labels: str) -> float:
        value = self.recorder.metric_registry.get_sample_value(name, labels)
        assert value is not None, f"no metric {name} {labels}"
        return value

    def refused(self, reason: str) -> float:
        return self.count("edl_teacher_refused_total", reason=reason)

    def requests(self, outcome: str) -> float:
        return self.count("edl_teacher_requests_total", outcome=outcome)

    @property
    def open_calls(self) -> int:
        """Calls, streams and connections for labels that the server holds."""
        return len(self.server.admission.infer_calls)

    @property
    def idle_calls(self) -> int:
        """The `open_calls` that have sent no request, or had their last one answered."""
        return sum(map(len, self.server.admission.infer_calls.idle_calls.values()))

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.server._loop  # noqa: SLF001 - for virtual time and faults

    def advance(self, seconds: float) -> None:
        """Let time pass for the server: timers of its event loop that are due run."""
        self._skipped_s += seconds
        self.loop.call_soon_threadsafe(lambda: None)  # it looks at its timers

    def hold_time(self) -> None:
        """Let time pass for the server by `advance` alone, however slow this machine is."""
        now_s = self._now()
        self._now = lambda: now_s

    def advance_until(self, condition: Callable[[], object], step_s: float) -> None:
        """Let time pass for the server until `condition` holds."""

        def holds() -> object:
            self.advance(step_s)
            return condition()

        wait_until(holds)

    def hold(self) -> Held:
        held = Held(self.labeller)
        self.at_end.callback(held.release)
        return held

    def fail(self, error: Exception) -> None:
        """Let the model raise `error` for each request from now on."""

        def fail() -> None:
            raise error

        self.labeller.before = fail

    def heal(self) -> None:
        self.labeller.before = lambda: None

    def close(self) -> None:
        self.at_end.close()
        self.channel.close()
        self.server.stop(0)
        self.labeller.close()


Make = Callable[..., Bench]


def timing(recorder: Recorder, nbytes: int = 100) -> RequestTiming:
    """A request for labels as the recorder is told of it, to be entered."""
    return recorder.call("grpc", "ModelInfer", lambda: "127.0.0.1:7").start_timing(nbytes)


class Held:
    """Requests that wait in the model until they are released."""

    def __init__(self, labeller: FakeLabeller) -> None:
        self._inside, self._go = threading.Semaphore(0), threading.Event()
        labeller.before = self._wait

    def _wait(self) -> None:
        self._inside.release()
        self._go.wait(WAIT_S)

    def wait(self, count: int = 1) -> None:
        """Return when `count` more requests are in the model."""
        for _ in range(count):
            assert self._inside.acquire(timeout=WAIT_S)

    @property
    def more(self) -> bool:
        """Whether another request is in the model than those that were waited for."""
        return self._inside.acquire(blocking=False)

    def release(self) -> None:
        self._go.set()


class GrpcStream:
    """One stream to a server; `put` sends requests, `next` waits for the next answer."""

    def __init__(self, bench: Bench) -> None:
        self._requests: queue.Queue[bytes | None] = queue.Queue()
        method = f"/{SERVICE}/ModelStreamInfer"
        parse = pb.ModelStreamInferResponse.FromString
        bench.at_end.callback(self.close)
        self.call: Any = bench.channel.stream_stream(method, None, parse)(
            iter(self._requests.get, None), timeout=WAIT_S
        )

    def put(self, *requests: bytes) -> None:
        for request in requests:
            self._requests.put(request)

    def next(self) -> pb.ModelStreamInferResponse:
        answer: pb.ModelStreamInferResponse = next(self.call)
        return answer

    def close(self) -> None:
        self._requests.put(None)


def refusal(
    call: Callable[..., object], *arguments: Any, **names: Any
) -> tuple[grpc.StatusCode, str]:
    """How gRPC ends a call that fails."""
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **names)
    error: Any = caught.value
    return error.code(), error.details()


@contextmanager
def half_open(bench: Bench, calls: int, method: str = "ModelInfer") -> Iterator[list[Any]]:
    """Calls that have sent their headers only, until the end of the `with`."""
    request_finished = threading.Event()

    def nothing() -> Iterator[bytes]:
        request_finished.wait(WAIT_S)
        yield from ()

    rpc = bench.channel.stream_unary(f"/{SERVICE}/{method}", None, None)
    open_: list[Any] = [rpc.future(nothing()) for _ in range(calls)]
    try:
        yield open_
    finally:
        request_finished.set()
        for call in open_:
            call.cancel()

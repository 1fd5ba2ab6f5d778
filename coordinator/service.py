"""The manager's gRPC side: the only asyncio here, on a thread of its own; one task per stream.

A thread per subscription would not do for a thousand students. The manager itself stays a plain
thread; between the two go only `Manager`'s queue and `call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from ..errors import AddressInUse, EdlError, LeaseSuperseded, RetryableError, WireError
from ..proto import coordinator_pb2 as pb
from ..proto.status import to_status
from ..proto.version import check_version
from . import keys
from .config import check_free, join_address
from .discovery import BEAT_METADATA
from .manager import Manager
from .overview import mesh_status
from .registry import Registry

log = logging.getLogger(__name__)

_SERVICE: Final = "edl.coordinator.v1.Coordinator"
_MAX_MESSAGE_BYTES: Final = 1 << 20
_MAX_HELD: Final = 4096
_LOSS_S: Final = 0.1
#: Terms are milliseconds since 1970: far below, and so is whatever is made from this.
_MAX_TERM: Final = 1 << 62
_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # else a second manager takes the same port without a word
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    # Readers ping often to find out that a manager hangs.
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
)

_M = TypeVar("_M", bound=Message)
_Context = grpc.aio.ServicerContext[Any, Any]


class CoordinatorServer:
    """Serves `edl.coordinator.v1.Coordinator` for one manager.

    Args:
        manager: who decides; started and stopped by the caller.
        registry: what `Status` reads.
    """

    def __init__(self, manager: Manager, registry: Registry) -> None:
        self._manager = manager
        self._registry = registry
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._grace_s = 0.0
        self._thread: threading.Thread | None = None

    def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which the system chose when `port` is 0.

        Raises:
            AddressInUse: another process listens there.
            UsageError: `host` is no address of this machine.
        """
        check_free(host, port)
        bound: Future[int] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(host, port, bound)), name="edl-grpc", daemon=True
        )
        self._thread.start()
        return bound.result()

    def stop(self, grace_s: float = 1.0) -> None:
        """End all streams, so that their students look for another manager. Idempotent."""
        if self._thread is None or self._loop is None or self._stopping is None:
            return
        self._grace_s = grace_s
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended before
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(grace_s + 5.0)

    async def _serve(self, host: str, port: int, bound: Future[int]) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers((self._handlers(),))
        address = join_address(host, port)
        try:
            chosen = server.add_insecure_port(address)
            await server.start()
        except RuntimeError:  # what gRPC raises when it cannot bind
            bound.set_exception(
                AddressInUse(f"cannot listen on {address}: another process was quicker")
            )
            return
        bound.set_result(chosen)
        await self._stopping.wait()
        await server.stop(self._grace_s)

    def _handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        # No (de)serializers: a malformed message is ours to refuse, not gRPC's to log.
        return grpc.method_handlers_generic_handler(
            _SERVICE,
            {
                "Subscribe": grpc.stream_stream_rpc_method_handler(self._subscribe),
                "Status": grpc.unary_unary_rpc_method_handler(self._status),
            },
        )

    async def _status(self, data: bytes, context: _Context) -> bytes:
        try:
            request = _parsed(pb.StatusRequest(), data)
            status = await asyncio.to_thread(self._overview, request.service)
        except EdlError as error:
            await context.abort(*_status_of(error))
        return status.SerializeToString()

    def _overview(self, service: str) -> pb.MeshStatus:
        return mesh_status(self._registry, self._manager.own_students(), service)

    async def _subscribe(self, requests: AsyncIterator[bytes], context: _Context) -> None:
        await context.send_initial_metadata(((BEAT_METADATA, f"{self._manager.beat_s:.3f}"),))
        stream = _Outgoing(asyncio.get_running_loop())
        hearing = asyncio.create_task(self._hear(requests, stream))
        closed = False
        try:
            while (assignment := await stream.next()) is not None:
                await context.write(assignment.SerializeToString())
            # A lost connection ends the requests as well, and cancels this task a moment later.
            await asyncio.sleep(_LOSS_S)
            closed = True
        except EdlError as error:
            await context.abort(*_status_of(error))
        finally:
            hearing.cancel()
            if stream.report is not None:
                self._manager.end(stream, stream.report, clean=closed)

    async def _hear(self, requests: AsyncIterator[bytes], stream: _Outgoing) -> None:
        try:
            async for data in requests:
                report = _parsed(pb.StudentReport(), data)
                _check_report(report, stream.report)
                first, stream.report = stream.report is None, report
                if first:
                    self._manager.subscribe(stream, report)
                else:
                    self._manager.report(stream, report)
        except EdlError as error:
            stream.fail(error)
        except Exception as error:  # of gRPC's, when the connection breaks in the middle
            log.debug("a subscription broke: %s", error)
            stream.fail(RetryableError("the subscription broke"))
        else:
            stream.finish()


class _Outgoing:
    """A student's stream as the manager sees it: keeps the latest assignment until it is sent."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.report: pb.StudentReport | None = None
        self._loop = loop
        self._changed = asyncio.Event()
        self._latest: pb.Assignment | None = None
        self._error: EdlError | None = None
        self._finished = False

    def push(self, assignment: pb.Assignment) -> None:
        """Called in the manager's thread."""
        with contextlib.suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(self._set_latest, assignment)

    def close(self, error: EdlError) -> None:
        """Called in the manager's thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.fail, error)

    def fail(self, error: EdlError) -> None:
        self._error = self._error or error
        self._changed.set()

    def finish(self) -> None:
        self._finished = True
        self._changed.set()

    async def next(self) -> pb.Assignment | None:
        """The next to send; None when the student has closed its side; raises the stream's end."""
        await self._changed.wait()
        self._changed.clear()
        if self._error is not None:
            raise self._error
        if self._finished:
            return None
        latest, self._latest = self._latest, None
        return latest

    def _set_latest(self, assignment: pb.Assignment) -> None:
        self._latest = assignment
        self._changed.set()


def _parsed(message: _M, data: bytes) -> _M:
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise WireError(f"these bytes are no {message.DESCRIPTOR.name} message") from None
    return message


def _check_report(report: pb.StudentReport, former: pb.StudentReport | None) -> None:
    check_version(report.protocol_version)
    keys.check_service(report.service)
    keys.check_member("students", report.student_id)
    if report.term > _MAX_TERM or report.counter > _MAX_TERM:
        raise WireError(f"term {report.term} is no time in milliseconds")
    if len(report.teachers) > _MAX_HELD:
        raise WireError(f"a student holds {len(report.teachers)} teachers; at most {_MAX_HELD}")
    for teacher in report.teachers:
        keys.check_member("teachers", teacher)
    if former is not None and _identity(report) != _identity(former):
        raise WireError(
            f"a stream belongs to one student: it began as {_identity(former)} and goes on as "
            f"{_identity(report)}"
        )


def _identity(report: pb.StudentReport) -> tuple[str, str, int]:
    return report.service, report.student_id, report.incarnation


def _status_of(error: EdlError) -> tuple[grpc.StatusCode, str]:
    if isinstance(error, LeaseSuperseded):
        return grpc.StatusCode.FAILED_PRECONDITION, str(error)
    return to_status(error)

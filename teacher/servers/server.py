"""The server of a teacher, with all its protocols in one event loop on a thread of its own.

Any thread may call `TeacherServer`; all asyncio code runs in the thread of the event loop. Nothing
blocks that thread for long: the model returns futures, and slow work, such as parsing JSON or
copying from shared memory, runs in other threads. So the loop answers probes and receives requests
while the model runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc

from ...proto.security.access_control import AccessControl
from ...proto.security.servers import aio_server, listen
from ...runtime.addresses import check_free, join_address
from ...runtime.errors import UsageError
from ...runtime.extras import install_command
from ..config import ServerConfig
from ..recorder import Recorder
from .admission import CallAdmission
from .grpc_methods import SERVICE, GrpcMethods
from .servicer import InferenceServicer, ServerContext

if TYPE_CHECKING:
    from .http_server import HttpServer


#: Limit of the headers of a call; a token and a few ids need a tenth of this size.
_MAX_METADATA_BYTES: Final = 8192
#: Bytes of a message that gRPC receives before the handler reads it.
_WINDOW_BYTES: Final = 4 << 20
#: A connection is pinged after this time without data, and closed if the ping is not answered
#: within the timeout.
_KEEPALIVE_MS: Final = 20_000
_KEEPALIVE_TIMEOUT_MS: Final = 10_000
#: A connection without a call is closed after this time; the client reconnects for its next call.
_IDLE_MS: Final = 300_000
#: Time limit for TLS and the first frames of a connection.
_HANDSHAKE_MS: Final = 10_000
#: Seconds between two calls of `SharedMemoryRegions.sweep`.
_SWEEP_S: Final = 10.0

_T = TypeVar("_T")


class TeacherServer:
    """The server of one teacher: binds its ports when it is created, and answers after `start`.

    Args:
        config: address and limits.
        servicer: answers requests.
        access: authenticates callers.
        recorder: records every call.
        on_ended: called in the thread of the event loop if gRPC's server ends without `stop`.

    Attributes:
        admission: authenticates callers and limits calls.
        port: bound port of gRPC.
        url: URL of HTTP; None without HTTP.

    Raises:
        AddressInUse: another process listens there.
        UsageError: this machine does not have the address, the certificates cannot be read, or a
            package for HTTP is not installed.
    """

    def __init__(
        self,
        config: ServerConfig,
        servicer: InferenceServicer,
        access: AccessControl,
        recorder: Recorder,
        on_ended: Callable[[], None] = lambda: None,
    ) -> None:
        check_free(config.host, config.port)
        self._config = config
        self._servicer = servicer
        self._recorder = recorder
        self._access = access
        self._on_ended = on_ended
        self._stopping = False
        self.admission = CallAdmission(config, access)
        context = ServerContext(config, servicer, self.admission, recorder)
        self._methods = GrpcMethods(context)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="edl-teacher-grpc", daemon=True)
        self._thread.start()
        self._http: HttpServer | None = None
        try:
            if config.http is not None:
                self._http = _http_server(context)
            self._server = self._run_in_loop(self._bind())
        except BaseException:
            self._end()
            raise
        self.url = None if self._http is None else self._http.url

    def start(self) -> None:
        """Start answering."""
        self._run_in_loop(self._start())

    def stop(self, grace_s: float) -> None:
        """Accept nothing new, wait up to `grace_s` for open requests, and close. Idempotent."""
        self._stopping = True
        if self._thread.is_alive():
            self._run_in_loop(self._leave(grace_s))
            self._end()

    async def _bind(self) -> grpc.aio.Server:
        methods, options = self._methods, _options(self._config.max_message_bytes)
        refused = partial(self._recorder.count_refusal, "malformed")
        server = aio_server(SERVICE, methods.handlers(), options, on_unknown=refused)
        address = join_address(self._config.host, self._config.port)
        self.port: int = listen(server, address, self._config.security, self._access)
        await methods.transport.bind(self.port)
        return server

    async def _start(self) -> None:
        await self._server.start()
        if self._http is not None:
            await self._http.start()
        self._watching = asyncio.create_task(self._watch())
        self._sweeping = asyncio.create_task(self._sweep())

    async def _leave(self, grace_s: float) -> None:
        self._methods.leave()
        http = () if self._http is None else (self._http.stop(grace_s),)
        await asyncio.gather(
            self._server.stop(grace_s), self._methods.transport.close(grace_s), *http
        )

    async def _sweep(self) -> None:
        """Release unused shared memory every `_SWEEP_S` seconds."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._servicer.memory.sweep()

    async def _watch(self) -> None:
        """Report if gRPC's server ends by itself, so that a dead server does not seem alive."""
        await self._server.wait_for_termination()
        if not self._stopping:
            self._on_ended()

    def _run_in_loop(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def _http_server(context: ServerContext) -> HttpServer:
    try:
        from .http_server import HttpServer
    except ModuleNotFoundError as error:
        raise UsageError(
            f"HTTP needs {error.name}, which is not installed: {install_command('http')}"
        ) from None
    return HttpServer(context)


def _options(max_message_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # else two servers could share a port unnoticed
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        # Otherwise an estimate of the bandwidth, which a busy machine inflates, decides how much of
        # a message is received before it is read.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
        ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", 2 * _MAX_METADATA_BYTES),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MS),  # its name in newer gRPC
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # Readers may ping often.
        ("grpc.http2.min_ping_interval_without_data_ms", 1000),
        ("grpc.http2.max_ping_strikes", 0),
    ]

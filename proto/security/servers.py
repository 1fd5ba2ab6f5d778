"""Listeners of servers: an acceptor for asyncio servers, and gRPC servers that reload certificates.

asyncio's own servers accept connections without a limit and wait a minute for each TLS handshake;
`Acceptor` limits both.

gRPC's asyncio server decodes the path of each call as UTF-8 in the one task that accepts all calls.
A call with other bytes, which anybody may send, ends that task and so stops the server.
`aio_server` lets gRPC's core match our methods byte by byte, and answers calls of other methods
without decoding their path.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
from grpc._cython import cygrpc
from grpc.aio import _server as grpc_server

from ...runtime.errors import AddressInUse
from .certificates import PemContents, Reloaded, check_validity, read_pem
from .client_connections import Options
from .credentials import ServerSecurity, TlsFiles

if TYPE_CHECKING:
    import uvicorn

    from .access_control import AccessControl


log = logging.getLogger(__name__)


#: The longest TLS handshake, in seconds.
HANDSHAKE_S: Final = 10.0
#: Maximum number of unfinished handshakes; a further handshake ends the oldest. asyncio allocates
#: 256 KiB for each TLS connection from its first byte on.
HANDSHAKES: Final = 128
#: Seconds that a handshake has at least after its first byte, however late the byte came.
_MIN_TLS_S: Final = 0.01
#: Seconds between two attempts to accept while the system refuses, for example without descriptors.
_ACCEPT_RETRY_S: Final = 0.1
#: HTTP servers: the largest head of a request, and seconds until an idle connection is closed.
_MAX_HEAD_BYTES: Final = 16 << 10
_KEEP_ALIVE_S: Final = 5


def uvicorn_config(app: Any, grace_s: int | None = None) -> uvicorn.Config:
    """Return the settings of an HTTP server whose connections an `Acceptor` accepts.

    Args:
        app: the application.
        grace_s: seconds for which uvicorn waits for open requests when it ends; None: no limit.
    """
    import uvicorn

    config = uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level=logging.CRITICAL,  # uvicorn would log addresses that callers can forge
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=grace_s,
    )
    config.load()
    return config


class Acceptor:
    """Accepts connections for an asyncio protocol, with limits. Lives in one event loop.

    Args:
        listener: a listening socket; `close` closes it.
        protocol: creates the protocol of a connection after the handshake.
        tls: None for unencrypted connections.
        max_connections: limit of all connections, including those in their handshake.
        open_connections: returns how many connections have a protocol now.
        make_room: called when there are `max_connections`: ends a connection that has a protocol,
            or returns False if none may be ended. Then the oldest handshake is ended, or, if there
            is none, the new connection is closed.
    """

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
        *,
        max_connections: int,
        open_connections: Callable[[], int],
        make_room: Callable[[], bool],
    ) -> None:
        self._listener = listener
        self._protocol = protocol
        self._tls = tls
        self._max_connections = max_connections
        self._open_connections = open_connections
        self._make_room = make_room
        self._handshakes: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._accepting: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._listener.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Stop accepting, abort handshakes and close the listener; open connections remain."""
        for task in (self._accepting, *self._handshakes):
            if task is not None:
                task.cancel()
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        failing = False
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError as error:  # no descriptors are left, or the peer has disconnected
                if not failing:
                    log.warning("no connection can be accepted now: %s", error)
                failing = True
                await asyncio.sleep(_ACCEPT_RETRY_S)
                continue
            failing = False
            if not self._has_room():
                connection.close()
            elif self._tls is None:
                await self._handshake(connection)  # without TLS it does not wait
            else:
                task = loop.create_task(self._handshake(connection))
                self._handshakes[task] = None
                task.add_done_callback(lambda done: self._handshakes.pop(done, None))
            await asyncio.sleep(0)  # let other tasks run, even if more connections are queued

    def _has_room(self) -> bool:
        """End another connection if needed; return whether there is room for a new connection."""
        full = len(self._handshakes) + self._open_connections() >= self._max_connections
        if len(self._handshakes) < HANDSHAKES and (not full or self._make_room()):
            return True
        if not self._handshakes:
            return False
        oldest = next(iter(self._handshakes))
        del self._handshakes[oldest]
        oldest.cancel()
        return True

    async def _handshake(self, connection: socket.socket) -> None:
        loop, limit_s = asyncio.get_running_loop(), None
        try:
            if self._tls is not None:
                began = loop.time()
                async with asyncio.timeout(HANDSHAKE_S):
                    await _wait_readable(connection)
                limit_s = max(began + HANDSHAKE_S - loop.time(), _MIN_TLS_S)
            await loop.connect_accepted_socket(
                self._protocol, connection, ssl=self._tls, ssl_handshake_timeout=limit_s
            )
        except OSError as error:  # also a TimeoutError
            connection.close()
            log.debug("a TLS handshake failed: %s", error)
        except asyncio.CancelledError:
            connection.close()
            raise
        except Exception:  # concerns this connection only
            connection.close()
            log.exception("a TLS handshake failed")


async def _wait_readable(connection: socket.socket) -> None:
    """Wait for the first byte; until then a connection needs only the memory of its socket."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def on_readable() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(connection, on_readable)
    try:
        await readable
    finally:
        loop.remove_reader(connection)


def listen(
    server: grpc.Server | grpc.aio.Server,
    address: str,
    security: ServerSecurity | None = None,
    access: AccessControl | None = None,
) -> int:
    """Bind a gRPC server to `address` and return the port.

    With TLS, a new connection uses the certificate that is in the files at its handshake. If that
    has expired, the former certificate stays in use. Existing connections keep theirs.

    Args:
        server: not started yet.
        address: host:port; port 0: any free one.
        security: None for neither TLS nor authentication.
        access: access control of this server. It counts failed TLS handshakes if `admit` gets the
            peer of each call.

    Raises:
        UsageError: a file of `security` cannot be used, or its certificate has expired.
        AddressInUse: gRPC cannot bind the address; it gives no reason.
    """
    try:
        if security is None or security.tls is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, _credentials(server, security.tls, access))
    except RuntimeError:
        raise AddressInUse(
            f"cannot listen on {address}: another process may listen there; choose another port"
        ) from None


#: Keeps credentials alive as long as their server: gRPC has only a bare pointer to them.
_SERVER_CREDENTIALS: weakref.WeakKeyDictionary[object, list[grpc.ServerCredentials]] = (
    weakref.WeakKeyDictionary()
)


def _credentials(
    server: object, files: TlsFiles, access: AccessControl | None
) -> grpc.ServerCredentials:
    pem = Reloaded(files.paths(), lambda: _read(files))
    latest = [pem.current()]

    def changed_configuration() -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC's threads before each handshake; returns None if nothing changed."""
        if access is not None:
            access.handshakes.handshake_started()
        current = pem.current()
        if current is latest[0]:
            return None
        latest[0] = current
        return _configuration(current)

    credentials = grpc.dynamic_ssl_server_credentials(
        _configuration(latest[0]),
        changed_configuration,  # type: ignore[arg-type]  # the stubs do not allow None
        require_client_authentication=files.ca is not None,
    )
    _SERVER_CREDENTIALS.setdefault(server, []).append(credentials)
    return credentials


def _read(files: TlsFiles) -> PemContents:
    assert files.certificate is not None
    pem = read_pem(files)
    check_validity(files.certificate)
    return pem


def _configuration(pem: PemContents) -> grpc.ServerCertificateConfiguration:
    assert pem.key is not None
    assert pem.certificate is not None
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.ca)


def aio_server(
    service: str,
    methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]],
    options: Options = (),
    on_unknown: Callable[[], None] = lambda: None,
) -> grpc.aio.Server:
    """Create a gRPC server for the running event loop; then pass it to `listen`, and start it.

    Args:
        service: full name of the service, such as "edl.coordinator.v1.Coordinator".
        methods: handlers by method name.
        options: gRPC server options.
        on_unknown: called for each call of any other method, which is answered UNIMPLEMENTED.
    """
    server: Any
    try:
        server = _RegisteredMethodsServer(options, on_unknown)
        server.add_registered_method_handlers(service, dict(methods))
    except (AttributeError, TypeError):  # another release of gRPC, with other internals
        log.warning(
            "gRPC %s has unknown internals: a call whose path is not UTF-8 would stop this server",
            grpc.__version__,
        )
        server = grpc.aio.server(options=list(options))
        handler = grpc.method_handlers_generic_handler(service, dict(methods))
        server.add_generic_rpc_handlers((handler,))
    return server  # type: ignore[no-any-return]


class _RegisteredMethodsServer(grpc_server.Server):
    """gRPC's server with a core that refuses unknown methods itself."""

    def __init__(self, options: Options, on_unknown: Callable[[], None]) -> None:
        self._loop = cygrpc.get_working_loop()
        core = _Core(self._loop, None, (), None, tuple(options), None)
        core.prepare(self._loop, on_unknown)
        self._server = core


class _Core(cygrpc.AioServer):  # type: ignore[misc]  # it has no types
    def prepare(self, loop: asyncio.AbstractEventLoop, on_unknown: Callable[[], None]) -> None:
        self._own_loop = loop
        self._on_unknown = on_unknown
        self._refusing: set[asyncio.Task[None]] = set()
        self._context_of = cygrpc._ServicerContext
        # Raises AttributeError if this release has no such method.
        self._needs = super()._request_registered_call

    async def _request_call(self) -> Any:
        """Wait for calls of unregistered methods and refuse them, so that gRPC's loop gets none."""
        while True:
            call = await super()._request_call()
            task = self._own_loop.create_task(self._refuse(call))
            self._refusing.add(task)
            task.add_done_callback(self._refusing.discard)

    async def _refuse(self, call: Any) -> None:
        context = self._context_of(call, None, None, self._own_loop)
        try:
            self._on_unknown()
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this server has no such method")
        except grpc.aio.AbortError:
            pass
        except Exception as error:  # from gRPC, when the connection is gone
            log.debug("a call of an unknown method broke: %s", error)

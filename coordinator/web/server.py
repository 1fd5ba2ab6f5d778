"""The web server of a manager's page: uvicorn in its own thread, with its own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from functools import partial
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...proto.security import Acceptor, AccessControl, TlsFiles, is_loopback, reloading_context
from ...runtime.errors import UsageError
from ...runtime.metrics import split_listen
from ..config import bound, join_address
from .app import Access, make_app
from .feed import MAX_VIEWERS, Feed, Source

log = logging.getLogger(__name__)

_BACKLOG: Final = 64
_MAX_CONNECTIONS: Final = 4 * MAX_VIEWERS
_MAX_HEAD: Final = 16 * 1024
_REQUEST_S: Final = 10.0
_GRACE_S: Final = 1


class WebServer:
    """Serves the live page of a mesh.

    On loopback, or if there are no tokens, everybody may view it; otherwise viewing requires a
    viewer's token. Draining always requires an administrator's token.

    Args:
        source: the mesh.
        listen: "PORT" or "HOST:PORT"; port 0: any free one.
        gate: knows the tokens; None, or one that does not authenticate: there are none.
        insecure: allow an address that other machines can reach, without authentication.
        tls: certificate and key for https, read again when they change; None: plain http.

    Raises:
        UsageError: `listen` is no address of this machine, or other machines can reach it without
            authentication and `insecure` is False; or certificate or key cannot be used.
        AddressInUse: another process listens on the address.
    """

    def __init__(
        self,
        source: Source,
        listen: str,
        gate: AccessControl | None = None,
        insecure: bool = False,
        *,
        tls: TlsFiles | None = None,
    ) -> None:
        host, port = split_listen(listen)
        known = gate if gate is not None and gate.authenticates else None
        local = is_loopback(host)
        if known is None and not local and not insecure:
            raise UsageError(
                f"the page on {host} can be seen from other machines: listen on 127.0.0.1, give "
                "--tokens FILE, or give --insecure if the network is trusted"
            )
        if known is not None and not local and tls is None:
            log.warning("tokens that are entered in the page on %s are sent unencrypted", host)
        self._feed = Feed(source)
        access = Access(known, guarded=known is not None and not local)
        app = make_app(source, access, self._feed, local=local)
        config = _config(app)
        self._server = uvicorn.Server(config)
        state = self._server.server_state
        self._scheme = "http" if tls is None else "https"
        context = None if tls is None else reloading_context(tls)
        self._socket = bound(host, port, "--http")
        self._socket.listen(_BACKLOG)
        self._acceptor = Acceptor(
            self._socket,
            partial(_Connection, config=config, server_state=state, app_state={}),
            context,
            max_connections=_MAX_CONNECTIONS,
            open_connections=lambda: len(state.connections),
            make_room=lambda: _end_silent(state.connections),
        )
        self._thread = threading.Thread(target=self._run, name="edl-page", daemon=True)

    @property
    def url(self) -> str:
        """URL of the page for a browser on this machine."""
        host, port = self._socket.getsockname()[:2]
        shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"{self._scheme}://{join_address(shown, port)}/"

    def start(self) -> str:
        """Start, once; return `url`."""
        self._thread.start()
        return self.url

    def stop(self) -> None:
        """End every connection and the thread. Idempotent."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        feeding = asyncio.create_task(self._feed.run())
        serving = asyncio.create_task(self._server.serve([]))  # the acceptor listens
        self._acceptor.start()
        while not self._server.should_exit and not serving.done():
            await asyncio.sleep(0.1)
        self._acceptor.close()
        feeding.cancel()  # ends the streams, which the server waits for
        with contextlib.suppress(asyncio.CancelledError):
            await feeding
        await serving


class _Connection(H11Protocol):
    """A connection that is closed if it sends no request in time."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(_REQUEST_S, self._end_if_silent)

    @property
    def is_silent(self) -> bool:
        """Whether it has sent no request yet."""
        return self.cycle is None and not self.transport.is_closing()

    def _end_if_silent(self) -> None:
        if self.is_silent:
            self.transport.close()


def _end_silent(connections: set[Any]) -> bool:
    """Close one connection that has sent no request; return whether there was one."""
    silent = next((one for one in connections if one.is_silent), None)
    if silent is not None:
        silent.transport.abort()
    return silent is not None


def _config(app: Any) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level=logging.CRITICAL,  # it would log addresses that callers can forge
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=_MAX_HEAD,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=_GRACE_S,
    )
    config.load()
    return config

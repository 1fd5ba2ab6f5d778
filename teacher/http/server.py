"""HTTP beside gRPC: uvicorn in the event loop of a teacher's server."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, Final

import uvicorn

from ...coordinator.config import bound, join_address
from ...metrics import split_listen
from ...proto.security import Acceptor, Gate, is_loopback, reloading_context
from ..config import ServerConfig
from ..front.calls import CallTable
from ..recorder import Recorder
from ..servicer import Servicer
from .app import Api
from .connections import Connection, end_longest_idle
from .inference import Inference
from .middleware import Callers, Recorded, guarded

_BACKLOG: Final = 128
_MAX_HEAD_BYTES: Final = 16 << 10
#: Connections at once; for one more, the one goes that has been idle for longest. asyncio has 256
#: KiB for each of TLS.
_MAX_CONNECTIONS: Final = 1024
_MAX_TLS_CONNECTIONS: Final = 256
_KEEP_ALIVE_S: Final = 5
#: Until what is left after a stop is cut off.
_LAST_S: Final = 0.2


class HttpServer:
    """Binds on creation; what else it does is done in the loop that gRPC's methods are in.

    Args:
        config: where, the limits, and the certificates.
        servicer: what to answer.
        gate: who may ask.
        recorder: told of every call.
        infer_calls: the calls that have batches labelled, by whichever protocol they came.

    Raises:
        UsageError: `config.http` is no address of this machine, or the certificates cannot be used.
        AddressInUse: another process listens there.
    """

    def __init__(
        self,
        config: ServerConfig,
        servicer: Servicer,
        gate: Gate,
        recorder: Recorder,
        infer_calls: CallTable,
    ) -> None:
        host, port = split_listen(config.http or "")
        callers = Callers(gate)
        self._inference = Inference(config, servicer, callers, infer_calls)
        api = Api(config, servicer, callers, recorder, self._inference)
        app = Recorded(guarded(api.app(), local=is_loopback(host)), recorder)
        served = _config(app)
        self._server = uvicorn.Server(served)
        state = self._server.server_state
        tls = None
        if config.security is not None and config.security.tls is not None:
            tls = reloading_context(config.security.tls, ask_clients=True)
        self._scheme = "https" if tls else "http"
        self._socket = bound(host, port, "--http")
        self._socket.listen(_BACKLOG)
        self._acceptor = Acceptor(
            self._socket,
            partial(
                Connection,
                config.receive_s,
                api.malformed,
                config=served,
                server_state=state,
                app_state={},
            ),
            tls,
            most=_MAX_TLS_CONNECTIONS if tls else _MAX_CONNECTIONS,
            standing=lambda: len(state.connections),
            make_room=lambda: end_longest_idle(state.connections),
        )
        self._serving: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """That is bound."""
        return int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        """Where it is: "http://HOST:PORT"."""
        host, port = self._socket.getsockname()[:2]
        return f"{self._scheme}://{join_address(host, port)}"

    async def start(self) -> None:
        """Answer from now on."""
        self._serving = asyncio.create_task(self._server.serve([]))  # the acceptor listens
        self._acceptor.start()

    async def stop(self, grace_s: float) -> None:
        """Take nothing new, wait up to `grace_s` for what is being answered, close."""
        self._acceptor.close()
        if self._serving is None:
            return
        self._server.config.timeout_graceful_shutdown = max(grace_s, _LAST_S)  # type: ignore[assignment]
        self._server.should_exit = True
        await self._serving
        self._inference.close()
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # in which they are closed


def _config(app: Any) -> uvicorn.Config:
    served = uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level=logging.CRITICAL,  # it would log addresses that strangers make up
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        timeout_keep_alive=_KEEP_ALIVE_S,
    )
    served.load()
    return served

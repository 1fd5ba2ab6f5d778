"""A server of gRPC's in an event loop that no path can end.

gRPC's own takes the path of each call for UTF-8, in the one task that takes in all calls: whoever
sends other bytes, without any credential, ends that task and with it the server. Here gRPC's core
matches our own methods byte by byte, and each call for another one is answered without reading
what it asks for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
import grpc.aio
from grpc._cython import cygrpc
from grpc.aio import _server as grpc_server

log = logging.getLogger(__name__)

Options = Sequence[tuple[str, Any]]


def aio_server(
    service: str,
    methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]],
    options: Options = (),
    on_unknown: Callable[[], None] = lambda: None,
) -> grpc.aio.Server:
    """A server for the loop that runs in this thread; to `listen` with, and to be started.

    Args:
        service: its full name, as "edl.coordinator.v1.Coordinator".
        methods: name -> handler.
        options: of gRPC's.
        on_unknown: called for each call of another method; it is answered UNIMPLEMENTED.
    """
    server: Any
    try:
        server = _SturdyServer(options, on_unknown)
        server.add_registered_method_handlers(service, dict(methods))
    except (AttributeError, TypeError):  # another release of gRPC, with other insides
        log.warning("this gRPC (%s) ends by a path that is not UTF-8", grpc.__version__)
        server = grpc.aio.server(options=list(options))
        handler = grpc.method_handlers_generic_handler(service, dict(methods))
        server.add_generic_rpc_handlers((handler,))
    return server  # type: ignore[no-any-return]


class _SturdyServer(grpc_server.Server):
    """The public face of gRPC's server, with a core that refuses unknown paths itself."""

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
        self._needs = super()._request_registered_call  # releases without it cannot be mended so

    async def _request_call(self) -> Any:
        """Where gRPC's loop waits for calls of methods that are not registered: for ever."""
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
        except Exception as error:  # of gRPC's, when the connection is gone
            log.debug("a call of an unknown method broke: %s", error)

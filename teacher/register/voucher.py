"""Answers service managers who has registered a foreign server, in that server's place.

A few methods of the Open Inference Protocol, so that what asks our teachers who they are can ask
here too. There is no model behind it: batches go to the server itself.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc

from ... import __version__
from ...errors import EdlError, RetryableError
from ...proto import inference_pb2 as pb
from ...proto.security import Gate, ServerSecurity, listen
from ...proto.status import to_status
from ..registration import Identity

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
#: A question and its answer are a few hundred bytes.
_MAX_BYTES: Final = 1 << 16
_AT_ONCE: Final = 64
_THREADS: Final = 4


class Voucher:
    """Serves at `address` until `stop`.

    Args:
        address: host:port to bind; port 0 is any.
        security: who may ask.

    Attributes:
        identity: as what the server stands in the registry now; None: it does not stand there.
        port: that was bound.

    Raises:
        UsageError: a file of `security` cannot be used.
        AddressInUse: another process listens there.
    """

    def __init__(self, address: str, security: ServerSecurity | None) -> None:
        self.identity: Identity | None = None
        self._gate = Gate(security)
        self._threads = ThreadPoolExecutor(_THREADS, "edl-voucher")
        self._server = grpc.server(
            self._threads,
            options=[("grpc.max_receive_message_length", _MAX_BYTES), ("grpc.so_reuseport", 0)],
            maximum_concurrent_rpcs=_AT_ONCE,
        )
        methods = {
            "ServerLive": _anybody(lambda: pb.ServerLiveResponse(live=True)),
            "ServerReady": _anybody(
                lambda: pb.ServerReadyResponse(ready=self.identity is not None)
            ),
            "ServerMetadata": grpc.unary_unary_rpc_method_handler(self._metadata),
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE, methods),)
        )
        self.port = listen(self._server, address, security, self._gate)
        self._server.start()

    def stop(self) -> None:
        """Let go of the port. Idempotent."""
        self._server.stop(0).wait()
        self._threads.shutdown()

    def _metadata(self, _: bytes, context: grpc.ServicerContext) -> bytes:
        asked = {name: str(value) for name, value in context.invocation_metadata() or ()}
        identities: Any = context.auth_context()
        try:
            self._gate.admit(context.invocation_metadata(), identities, context.peer())
            if (identity := self.identity) is None:
                raise RetryableError("the server that is vouched for here does not answer well now")
            context.set_trailing_metadata(identity.proof(asked))
        except EdlError as error:
            context.abort(*to_status(error))
        said = pb.ServerMetadataResponse(name="edl-teacher-register", version=__version__)
        return said.SerializeToString()


def _anybody(answer: Callable[[], Any]) -> grpc.RpcMethodHandler[Any, Any]:
    """These tell nothing but that somebody is here, and load balancers have no token."""

    def serve(request: bytes, context: grpc.ServicerContext) -> bytes:
        message: bytes = answer().SerializeToString()
        return message

    return grpc.unary_unary_rpc_method_handler(serve)

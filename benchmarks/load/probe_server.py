"""A server that answers the probes of service managers for all teachers of a crowd."""

from __future__ import annotations

from typing import Any, Final

import grpc

from ...proto import inference_pb2 as pb
from ...proto.security import instance

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
#: Incarnation and instance key of all simulated teachers: each starts only once.
INCARNATION: Final = 1
KEY: Final = instance.new_key()


class ProbeServer:
    """A gRPC server at one address that proves the identity of any teacher that a probe names."""

    def __init__(self) -> None:
        self._server = grpc.aio.server()
        answer = grpc.unary_unary_rpc_method_handler(_server_metadata)
        methods = {"ServerMetadata": answer}
        handler = grpc.method_handlers_generic_handler(_SERVICE, methods)
        self._server.add_generic_rpc_handlers((handler,))

    async def start(self) -> str:
        """Listen on loopback; return the address."""
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return f"127.0.0.1:{port}"

    async def stop(self) -> None:
        await self._server.stop(0.5)


async def _server_metadata(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    metadata = {key: str(value) for key, value in context.invocation_metadata() or ()}
    proof = instance.prove(
        KEY, metadata.get("edl-instance", ""), INCARNATION, metadata.get("edl-challenge", "")
    )
    context.set_trailing_metadata((("edl-proof", proof), ("edl-incarnation", str(INCARNATION))))
    return pb.ServerMetadataResponse(name="crowd").SerializeToString()

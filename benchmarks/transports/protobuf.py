"""The Open Inference Protocol over gRPC, with generated protobuf code and glibc's default malloc.

Unlike readers and teachers, it does not call `proto.arena.tune_allocator`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc
import numpy as np

from ...proto import inference_pb2 as pb
from ...proto.arena import Array
from ...proto.datatypes import datatype_of
from ...proto.security.client_connections import stub_of
from ...proto.security.credentials import TlsFiles
from . import HOST, IN_FLIGHT, SendRequest, Transport, read_pages
from . import reply as make_reply

_UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


_SERVICE: Final = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]


def _serve(batch: Array, tls: TlsFiles | None) -> int:
    del batch, tls
    reply = make_reply()

    def infer(request: Any, context: Any) -> Any:
        read_pages(np.frombuffer(request.raw_input_contents[0], np.uint8))
        return pb.ModelInferResponse(
            model_name="model",
            outputs=[{"name": "y", "datatype": "FP32", "shape": reply.shape}],
            raw_output_contents=[reply.tobytes()],
        )

    handler = grpc.unary_unary_rpc_method_handler(
        infer, pb.ModelInferRequest.FromString, pb.ModelInferResponse.SerializeToString
    )
    server = grpc.server(ThreadPoolExecutor(IN_FLIGHT), options=_UNLIMITED)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(_SERVICE.full_name, {"ModelInfer": handler}),)
    )
    port = server.add_insecure_port(f"{HOST}:0")
    server.start()
    _SERVERS.append(server)
    return int(port)


#: References to running servers: a server stops when it is garbage-collected.
_SERVERS: list[grpc.Server] = []


def _connect(port: int, batch: Array, tls: TlsFiles | None) -> SendRequest:
    del tls
    channel = grpc.insecure_channel(f"{HOST}:{port}", options=_UNLIMITED)
    stub = stub_of(channel, _SERVICE)

    def send_request(_: int) -> None:
        request = pb.ModelInferRequest(
            model_name="model",
            inputs=[{"name": "x", "datatype": datatype_of(batch.dtype), "shape": batch.shape}],
            raw_input_contents=[batch.tobytes()],
        )
        answer = stub.ModelInfer(request)
        np.frombuffer(answer.raw_output_contents[0], np.float32)

    return send_request


#: It has no TLS: `tls` is ignored.
GENERATED: Final = Transport(_serve, _connect)

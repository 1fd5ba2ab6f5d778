"""A teacher with scripted behaviour: an OIP server with a numpy function as its model.

It runs in the process of the test (`ScriptedTeacher`), where its behaviour can be changed at any
time, or in a process that can be killed: `python -m edl.tests.scripted_teacher --seconds 0.05`.
"""

from __future__ import annotations

import argparse
import operator
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

import grpc
import numpy as np

from edl.proto import inference_pb2 as pb
from edl.proto import tensors
from edl.proto.arena import Array
from edl.proto.clients import LabelResponse
from edl.proto.security.access_control import AccessControl
from edl.proto.security.credentials import ServerSecurity
from edl.proto.security.servers import listen
from edl.proto.status import to_metadata, to_status
from edl.runtime.errors import EdlError
from edl.runtime.supervise import end_with_parent

SERVICE = "inference.GRPCInferenceService"
CLASSES = 10

Behaviour = Callable[[tensors.InferRequest], dict[str, Array]]


def logits_of(x: Array) -> Array:
    """Return labels, float32 [N, 10]: the sum of each row times 1, 2, ..., so that rows differ."""
    rows = x.reshape(len(x), -1).astype(np.float64).sum(axis=1)
    return np.outer(rows, np.arange(1, CLASSES + 1)).astype(np.float32)


def label(request: tensors.InferRequest) -> dict[str, Array]:
    """Label a request; the default behaviour."""
    return {"logits": logits_of(request.inputs["x"])}


class ScriptedTeacher:
    """Serves `behaviour` until `stop`; it may sleep, raise an EdlError, or return wrong labels.

    Tests may change the attributes at any time.
    """

    def __init__(
        self,
        behaviour: Behaviour = label,
        *,
        seconds: float = 0.001,
        port: int = 0,
        security: ServerSecurity | None = None,
    ) -> None:
        self.behaviour = behaviour
        # Its metadata: inputs and their datatype; outputs -> values in a row; kind of all outputs.
        self.inputs: tuple[str, ...] = ("x",)
        self.datatype = "FP32"
        self.outputs = {"logits": CLASSES}
        self.output_kind = ""
        self.is_ready: Callable[[], bool] = lambda: True  # called for each probe; may sleep
        self.seconds = seconds  # device time in its answers
        self.parameters: dict[str, Any] = {}  # added to each answer
        self.requests = 0  # number of received requests
        self._server = grpc.server(
            futures.ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", -1)]
        )
        self._server.add_generic_rpc_handlers((self._handlers(),))
        self._gate = AccessControl(security)
        self.address = f"127.0.0.1:{listen(self._server, f'127.0.0.1:{port}', security)}"
        self._server.start()

    def stop(self, grace_s: float = 0.0) -> None:
        self._server.stop(grace_s).wait(5)

    def _handlers(self) -> Any:
        def method(handler: Callable[..., Any], request: Any) -> Any:
            write = operator.methodcaller("SerializeToString")
            return grpc.unary_unary_rpc_method_handler(
                self._gated(handler), request.FromString, write
            )

        methods = {
            "ServerMetadata": method(self._server_metadata, pb.ServerMetadataRequest),
            "ModelReady": method(self._model_ready, pb.ModelReadyRequest),
            "ModelMetadata": method(self._metadata, pb.ModelMetadataRequest),
            "ModelInfer": grpc.unary_unary_rpc_method_handler(self._gated(self._infer)),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _gated(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                self._gate.admit(context.invocation_metadata(), context.auth_context())
            except EdlError as error:
                context.abort(*to_status(error))
            return handler(request, context)

        return answer

    def _server_metadata(self, request: Any, context: Any) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(name="scripted")

    def _model_ready(self, request: Any, context: Any) -> pb.ModelReadyResponse:
        return pb.ModelReadyResponse(ready=self.is_ready())

    def _metadata(self, request: Any, context: Any) -> pb.ModelMetadataResponse:
        tensor = pb.ModelMetadataResponse.TensorMetadata
        inputs = [tensor(name=name, datatype=self.datatype, shape=[-1, -1]) for name in self.inputs]
        kind = self.output_kind or None
        outputs = [
            tensor(name=name, datatype="FP32", shape=[-1, width], output_kind=kind)
            for name, width in self.outputs.items()
        ]
        return pb.ModelMetadataResponse(name=request.name, inputs=inputs, outputs=outputs)

    def _infer(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        self.requests += 1
        request = tensors.decode_request(data)
        try:
            outputs = self.behaviour(request)
        except EdlError as error:
            context.set_trailing_metadata(to_metadata(error))
            context.abort(*to_status(error))
        response = LabelResponse(
            model_name=request.model_name,
            outputs=outputs,
            request_id=request.request_id,
            parameters={"device_seconds": self.seconds, **self.parameters},
        )
        return tensors.encode_response(response)


def main() -> None:
    """Serve as a program."""
    end_with_parent(grace_s=0.5)
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--factor", type=float, default=1.0, help="of its logits")
    options = parser.parse_args()
    seconds, factor = options.seconds, np.float32(options.factor)

    def slow(request: tensors.InferRequest) -> dict[str, Array]:
        time.sleep(seconds)
        return {name: labels * factor for name, labels in label(request).items()}

    teacher = ScriptedTeacher(slow, seconds=seconds or 1e-4)
    print(f"ready on {teacher.address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()

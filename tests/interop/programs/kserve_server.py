"""KServe's model server with the tiny model: `python kserve_server.py GRPC_PORT HTTP_PORT`.

It listens on every address of the host and has no option for that; here it is held to the loopback.
"""

from __future__ import annotations

import sys
from typing import Any

import network  # type: ignore[import-not-found]  # it lies beside this file
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer, model_server
from kserve.protocol.grpc import server as grpc_server

HOST = "127.0.0.1"
aio = grpc_server.aio


class LoopbackRest(model_server.RESTServer):  # type: ignore[misc]
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.config.host = HOST


class LoopbackGrpc:
    """Stands for `grpc.aio` in the one module that opens the port."""

    @staticmethod
    def server(*args: Any, **options: Any) -> Any:
        made = aio.server(*args, **options)
        listen = made.add_insecure_port
        made.add_insecure_port = lambda address: listen(address.replace("[::]", HOST))
        return made


class Net(Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(network.MODEL)
        self.ready = True

    def get_input_types(self) -> list[dict[str, Any]]:
        return [{"name": network.INPUT, "datatype": "FP32", "shape": [-1, network.FEATURES]}]

    def get_output_types(self) -> list[dict[str, Any]]:
        return [{"name": network.OUTPUT, "datatype": "FP32", "shape": [-1, network.CLASSES]}]

    def predict(self, payload: InferRequest, *_: Any, **__: Any) -> InferResponse:
        labels = network.answer(payload.inputs[0].as_numpy())
        output = InferOutput(network.OUTPUT, list(labels.shape), "FP32")
        output.set_data_from_numpy(labels, binary_data=payload.use_binary_outputs)
        return InferResponse(
            payload.id,  # where there is none, its answer over HTTP is an error 500
            network.MODEL,
            [output],
            use_binary_outputs=payload.use_binary_outputs,
            requested_outputs=payload.request_outputs,
        )


if __name__ == "__main__":
    grpc_server.aio = LoopbackGrpc
    model_server.RESTServer = LoopbackRest
    ports = [int(word) for word in sys.argv[1:]]
    ModelServer(grpc_port=ports[0], http_port=ports[1], workers=1).start([Net()])

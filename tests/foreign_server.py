"""Servers of the Open Inference Protocol without our extensions.

They use protobuf's code and Python's HTTP server instead of our codec: no instance, no device time,
no label forms. They run in the process of the test, or in a process that can be killed:
`python -m edl.tests.foreign_server --kind json --behaviour FILE`.
"""

from __future__ import annotations

import argparse
import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent import futures
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import grpc
import numpy as np

from edl.proto import inference_pb2 as pb
from edl.proto.arena import Array
from edl.proto.clients import MODEL_CONFIGURATION
from edl.runtime.supervise import end_with_parent
from edl.tests.scripted_teacher import CLASSES, SERVICE, logits_of
from edl.tests.servicers import add_servicer

MODEL = "m"
OUTPUT = "output-0"
Kind = Literal["grpc", "http", "json"]
Behaviour = Callable[[Array], Array]


#: Content of the file `--behaviour` -> behaviour of a server in its own process.
BEHAVIOURS: dict[str, Behaviour] = {
    "": logits_of,
    "nan": lambda x: np.full((len(x), CLASSES), np.nan, np.float32),
    "short": lambda x: logits_of(x)[:-1],
    "text": lambda x: np.full((len(x), 1), b"cat", object),
    "other": lambda x: logits_of(x) + 100.0,
}


class ForeignServer:
    """Common part of the kinds of servers. Tests may change the attributes at any time."""

    address: str  # in the form that a reader takes
    kind: Kind = "grpc"

    def __init__(self, behaviour: Behaviour = logits_of) -> None:
        self.behaviour = behaviour
        self.ready = True
        self.describes = True  # whether its metadata has inputs and outputs
        self.most_rows: int | None = None  # largest batch in the model configuration; None: none
        self.requests = 0  # number of received batches

    def stop(self) -> None:
        raise NotImplementedError

    def label(self, x: Array) -> Array:
        self.requests += 1
        return self.behaviour(x)


class ForeignGrpc(ForeignServer):
    """A gRPC server that uses protobuf's code."""

    def __init__(self, behaviour: Behaviour = logits_of, port: int = 0) -> None:
        super().__init__(behaviour)
        self._server = grpc.server(
            futures.ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", -1)]
        )
        add_servicer(self._server, pb.DESCRIPTOR.services_by_name["GRPCInferenceService"], self)
        configured = grpc.unary_unary_rpc_method_handler(
            self._configured,
            pb.ModelConfigRequest.FromString,
            pb.ModelConfigResponse.SerializeToString,
        )
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(SERVICE, {"ModelConfig": configured})]
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port}')}"
        self._server.start()

    def stop(self) -> None:
        self._server.stop(0).wait(5)

    def ServerMetadata(self, request: Any, context: Any) -> Any:
        if self.most_rows is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "it says nothing of itself")
        return pb.ServerMetadataResponse(name="foreign", extensions=[MODEL_CONFIGURATION])

    def _configured(self, request: Any, context: Any) -> Any:
        config = pb.ModelConfig(max_batch_size=self.most_rows or 0)
        return pb.ModelConfigResponse(config=config)

    def ModelReady(self, request: Any, context: Any) -> Any:
        if request.name != MODEL:
            context.abort(grpc.StatusCode.NOT_FOUND, f"unknown model {request.name}")
        return pb.ModelReadyResponse(ready=self.ready)

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        tensor = pb.ModelMetadataResponse.TensorMetadata
        if not self.describes:
            return pb.ModelMetadataResponse(name=MODEL)
        return pb.ModelMetadataResponse(
            name=MODEL,
            inputs=[tensor(name="x", datatype="FP32", shape=[-1, 6])],
            outputs=[tensor(name=OUTPUT, datatype="FP32", shape=[-1, CLASSES])],
        )

    def ModelInfer(self, request: Any, context: Any) -> Any:
        (given,) = request.inputs
        x = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(tuple(given.shape))
        y = self.label(x)
        output = pb.ModelInferResponse.InferOutputTensor(
            name=OUTPUT, datatype="BYTES" if y.dtype == object else "FP32", shape=y.shape
        )
        if y.dtype == object:
            output.contents.bytes_contents.extend(y.ravel().tolist())
            return pb.ModelInferResponse(model_name=MODEL, outputs=[output])
        return pb.ModelInferResponse(
            model_name=MODEL, outputs=[output], raw_output_contents=[y.tobytes()]
        )


class ForeignHttp(ForeignServer):
    """An HTTP/1.1 server; without `binary` it refuses binary tensors with 422."""

    def __init__(
        self, behaviour: Behaviour = logits_of, *, binary: bool = True, port: int = 0
    ) -> None:
        super().__init__(behaviour)
        self.binary = binary
        self.kind = "http" if binary else "json"
        self.status = 200  # of the answers to all batches; if it is not 200, they have `headers`
        self.headers: dict[str, str] = {}
        self.heads: list[str] = []  # content types of received batches
        self.sockets: list[socket.socket] = []  # of all accepted connections
        outer = self

        class Handler(_Handler):
            server_of = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join(5)
        self._server.server_close()
        for connection in self.sockets:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_of: ForeignHttp

    def setup(self) -> None:
        super().setup()
        self.server_of.sockets.append(self.connection)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        server = self.server_of
        if self.path == f"/v2/models/{MODEL}/ready":
            self._answer(200 if server.ready else 503, {"ready": server.ready})
        elif self.path == "/v2" and server.most_rows is not None:
            self._answer(200, {"name": "foreign", "extensions": [MODEL_CONFIGURATION]})
        elif self.path == f"/v2/models/{MODEL}/config" and server.most_rows is not None:
            self._answer(200, {"name": MODEL, "max_batch_size": server.most_rows})
        elif self.path == f"/v2/models/{MODEL}" and server.describes:
            x = {"name": "x", "datatype": "FP32", "shape": [-1, 6]}
            y = {"name": OUTPUT, "datatype": "FP32", "shape": [-1, CLASSES]}
            self._answer(200, {"name": MODEL, "inputs": [x], "outputs": [y]})
        elif self.path == f"/v2/models/{MODEL}":
            self._answer(200, {"name": MODEL, "inputs": [], "outputs": None})
        else:
            self._answer(404, {"error": f"nothing at {self.path}"})

    def do_POST(self) -> None:
        server = self.server_of
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.heads.append(self.headers["Content-Type"])
        length = self.headers.get("Inference-Header-Content-Length")
        if server.status != 200:
            return self._answer(server.status, {"error": "as the test says"}, server.headers)
        if length is not None and not server.binary:
            return self._answer(422, {"detail": "expected a JSON object"})
        message = json.loads(body[: int(length or len(body))])
        (given,) = message["inputs"]
        if length is None:
            x = np.array(given["data"], np.float32).reshape(given["shape"])
        else:
            x = np.frombuffer(body[int(length) :], np.float32).reshape(given["shape"])
        y = server.label(x)
        output: dict[str, Any] = {
            "name": OUTPUT,
            "datatype": "BYTES" if y.dtype == object else "FP32",
            "shape": list(y.shape),
            "parameters": {"content_type": "np", "headers": {"none": None}},
        }
        answer = {"model_name": MODEL, "id": None, "parameters": None, "outputs": [output]}
        if length is None or y.dtype == object:
            texts = [e.decode() if isinstance(e, bytes) else e for e in y.ravel().tolist()]
            output["data"] = texts
            return self._answer(200, answer)
        output["parameters"] = {"binary_data_size": y.nbytes}
        return self._answer(200, answer, tail=y.tobytes())

    def _answer(
        self,
        status: int,
        message: dict[str, Any],
        headers: dict[str, str] | None = None,
        tail: bytes = b"",
    ) -> None:
        head = json.dumps(message).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if tail:
            self.send_header("Inference-Header-Content-Length", str(len(head)))
        self.send_header("Content-Length", str(len(head) + len(tail)))
        with suppress(ConnectionError):  # the client has disconnected
            self.end_headers()
            self.wfile.write(head + tail)


def start(kind: Kind, behaviour: Behaviour = logits_of, port: int = 0) -> ForeignServer:
    """Start a server in this process, on loopback; `port` 0: any free one."""
    if kind == "grpc":
        return ForeignGrpc(behaviour, port)
    return ForeignHttp(behaviour, binary=kind == "http", port=port)


def main() -> None:
    """Serve as a program; the content of `--behaviour` may change what it answers meanwhile."""
    end_with_parent(grace_s=0.5)
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=("grpc", "http", "json"), default="grpc")
    parser.add_argument("--behaviour", type=Path)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--mute", action="store_true", help="describe nothing")
    given = parser.parse_args()

    def behave(x: Array) -> Array:
        time.sleep(given.seconds)
        file = given.behaviour
        return BEHAVIOURS[file.read_text().strip() if file and file.exists() else ""](x)

    server = start(given.kind, behave, given.port)
    server.describes = not given.mute
    print(f"ready on {server.address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()

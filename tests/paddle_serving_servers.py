"""Test servers of Paddle Serving's protocols, made of protobuf's code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np

from edl.proto.arena import Array
from edl.proto.clients.paddle_serving import NPY, TYPES, read_npy, write_npy
from edl.proto.paddle_serving import general_model_pb2 as cpp
from edl.proto.paddle_serving import pipeline_pb2
from edl.tests.servicers import add_servicer

SERVICE = "net"
CLASSES = 3


def labels(x: Array) -> Array:
    """Return the labels that all servers here return for a batch [N, F], float32 [N, 3]."""
    total = x.reshape(len(x), -1).sum(axis=1, dtype=np.float32)
    return np.stack([total * factor for factor in range(1, CLASSES + 1)], axis=1)


@dataclass
class Pipeline:
    """A pipeline server with one operator."""

    answer: Callable[[], pipeline_pb2.Response] | None = None  # makes answers instead of labels
    stranger: int = 3002  # error number for another service name
    requests: list[pipeline_pb2.Request] = field(default_factory=list)

    def inference(self, request: Any, context: Any) -> pipeline_pb2.Response:
        self.requests.append(request)
        if request.name not in ("", SERVICE):
            return pipeline_pb2.Response(err_no=self.stranger, err_msg="Service name error.")
        if self.answer is not None:
            return self.answer()
        if [tensor.name for tensor in request.tensors] != ["x"]:
            return pipeline_pb2.Response(err_no=5000, err_msg="invalid arg list")
        y = labels(read_npy(request.tensors[0].byte_data))
        tensors = [
            pipeline_pb2.Tensor(name="y", elem_type=NPY, shape=y.shape, byte_data=write_npy(y)),
            pipeline_pb2.Tensor(name="n", elem_type=0, shape=[1], int64_data=[len(y)]),
        ]
        return pipeline_pb2.Response(tensors=tensors)


@dataclass
class GeneralModel:
    """A C++ server with one model: input `x` [N, F] of any type, output `y` [N, 3]."""

    requests: list[cpp.Request] = field(default_factory=list)
    err_no: int = 0

    def inference(self, request: Any, context: Any) -> cpp.Response:
        self.requests.append(request)
        if self.err_no:
            return cpp.Response(err_no=self.err_no, err_msg="out of order")
        (tensor,) = request.tensor
        kind = TYPES[tensor.elem_type]
        x = np.array(getattr(tensor, kind.field)).reshape(tuple(tensor.shape))
        y = labels(x)
        answer = cpp.Tensor(name="fc_0.tmp_1", alias_name="y", elem_type=1, shape=y.shape)
        answer.float_data.extend(y.ravel().tolist())
        output = cpp.ModelOutput(tensor=[answer], engine_name="general_infer_0")
        return cpp.Response(outputs=[output], log_id=request.log_id)


@contextmanager
def serving(servicer: Pipeline | GeneralModel) -> Iterator[str]:
    """Serve on loopback while the body runs; yield the address."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    messages = pipeline_pb2.DESCRIPTOR if isinstance(servicer, Pipeline) else cpp.DESCRIPTOR
    (service,) = messages.services_by_name.values()
    add_servicer(server, service, servicer)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()

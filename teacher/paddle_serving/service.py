"""The server program: `python service.py CONFIG NAME HOST CALLS MICRO_BATCH GRACE_S`.

It is Paddle Serving's pipeline server with one operator, the model. It differs from upstream's
`WebService`: answers are binary tensors instead of text; requests are not unpickled; it listens at
a given address instead of on every interface; and the model runs in micro-batches, so that the
server can handle other calls in between. Our package cannot be imported here.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import threading
import time
from concurrent import futures
from typing import Any

import grpc
import numpy as np
import paddle
from paddle_serving_server import pipeline
from paddle_serving_server.pipeline.pipeline_server import PipelineServicer
from paddle_serving_server.pipeline.proto import pipeline_service_pb2, pipeline_service_pb2_grpc

#: Element type of a tensor that contains a .npy file.
NPY = 13
#: Name of the operator in CONFIG.
OPERATOR = "model"
#: Seconds without a request after which all callers should have noticed the drain.
QUIET_S = 0.5
MAX_MESSAGE_BYTES = 256 << 20


class PlainRequest(pipeline.RequestOp):  # type: ignore[misc]
    """Reads only arrays of numbers; upstream would unpickle what it receives."""

    def proto_tensor_2_numpy(self, tensor: Any) -> Any:
        if tensor.elem_type == NPY:
            return np.load(io.BytesIO(tensor.byte_data), allow_pickle=False), None
        return super().proto_tensor_2_numpy(tensor)


class MicroBatched(pipeline.Op):  # type: ignore[misc]
    """Runs the model in micro-batches: Paddle holds the interpreter's lock during a run."""

    def __init__(self, rows: int, **options: Any) -> None:
        self._rows = rows
        super().__init__(**options)

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        (feed,) = feed_batch
        sizes = {len(array) if array.ndim else 0 for array in feed.values()}
        if len(sizes) != 1 or max(sizes) <= self._rows:
            return super().process(feed_batch, typical_logid)
        parts = []
        for at in range(0, max(sizes), self._rows):
            piece = {
                name: np.ascontiguousarray(array[at : at + self._rows])
                for name, array in feed.items()
            }
            outputs, code, message = super().process([piece], typical_logid)
            if code:
                return outputs, code, message
            parts.append(outputs)
        return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}, code, message


class BinaryResponse(pipeline.ResponseOp):  # type: ignore[misc]
    """Packs arrays as they are, and errors as upstream does."""

    def pack_response_package(self, channeldata: Any) -> Any:
        if channeldata.error_code:
            return super().pack_response_package(channeldata)
        response = pipeline_service_pb2.Response(err_no=0)
        for name, array in channeldata.parse().items():
            file = io.BytesIO()
            np.save(file, array, allow_pickle=False)
            response.tensors.add(
                name=name, elem_type=NPY, shape=array.shape, byte_data=file.getvalue()
            )
        return response


class CountingServicer(PipelineServicer):  # type: ignore[misc]
    """Upstream's servicer, which also counts the requests in flight."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._changed = threading.Condition()
        self._in_flight = 0
        self._ended_s = 0.0

    def inference(self, request: Any, context: Any) -> Any:
        with self._changed:
            self._in_flight += 1
        try:
            return super().inference(request, context)
        finally:
            with self._changed:
                self._in_flight -= 1
                self._ended_s = time.monotonic()
                self._changed.notify_all()

    def wait_quiet(self, timeout_s: float) -> None:
        """Wait until there was no request for `QUIET_S`, for at most `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        began_s = time.monotonic()
        with self._changed:
            while (now := time.monotonic()) < deadline:
                quiet_s = now - max(began_s, self._ended_s)
                if not self._in_flight and quiet_s >= QUIET_S:
                    return
                self._changed.wait(min(deadline - now, max(QUIET_S - quiet_s, 0.01)))


class DrainingPipelineServer(pipeline.PipelineServer):  # type: ignore[misc]
    """A pipeline server at one address, which drains before it ends.

    Args:
        name: name of the service; requests for others are refused.
        host: address to listen on; the port is in the configuration.
        calls: concurrent calls; one more is answered RESOURCE_EXHAUSTED.
        grace_s: the longest drain, in seconds.
    """

    def __init__(self, name: str, host: str, calls: int, grace_s: float) -> None:
        super().__init__(name)
        self._host = host
        self._calls = calls
        self._grace_s = grace_s

    def run_server(self) -> None:
        """Serve until SIGTERM, then until there are no more requests."""
        server = grpc.server(
            futures.ThreadPoolExecutor(self._worker_num),
            options=[
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.so_reuseport", 0),  # else a second server could take half of the requests
            ],
            maximum_concurrent_rpcs=self._calls,
        )
        servicer = CountingServicer(self._name, self._response_op, self._conf)
        pipeline_service_pb2_grpc.add_PipelineServiceServicer_to_server(servicer, server)
        stop = threading.Event()
        paddle.disable_signal_handler()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        server.add_insecure_port(f"{self._host}:{self._rpc_port}")
        server.start()
        stop.wait()
        servicer.wait_quiet(self._grace_s)
        server.stop(0).wait()


def main(config: str, name: str, host: str, calls: int, rows: int, grace_s: float) -> None:
    """Serve the configuration file `config`."""
    # Upstream logs each request, in files of up to 10 GB. Errors are in the answers.
    logging.getLogger().setLevel(logging.CRITICAL)
    model = MicroBatched(rows, name=OPERATOR, input_ops=[PlainRequest()])
    server = DrainingPipelineServer(name, host, calls, grace_s)
    server.set_response_op(BinaryResponse(input_ops=[model]))
    server.prepare_server(yml_file=config)
    server.run_server()
    os._exit(0)  # threads of upstream's pipeline never end


if __name__ == "__main__":
    _, config, name, host, calls, rows, grace_s = sys.argv
    main(config, name, host, int(calls), int(rows), float(grace_s))

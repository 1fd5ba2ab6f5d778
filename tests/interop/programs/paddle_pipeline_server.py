"""A pipeline server as its operators start one; runs in Paddle Serving's environment.

`python paddle_pipeline_server.py CONFIG NAME text|tensors` serves what CONFIG says. `text` leaves
the operator that packs answers as it comes.
"""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
from paddle_serving_server import pipeline
from paddle_serving_server.pipeline.proto import pipeline_service_pb2


class TensorResponse(pipeline.ResponseOp):  # type: ignore[misc]
    """Packs arrays as tensors."""

    def pack_response_package(self, channeldata: Any) -> Any:
        if channeldata.error_code:
            return super().pack_response_package(channeldata)
        response = pipeline_service_pb2.Response(err_no=0)
        for name, array in channeldata.parse().items():
            npy = io.BytesIO()
            np.save(npy, array, allow_pickle=False)
            response.tensors.add(
                name=name, elem_type=13, shape=array.shape, byte_data=npy.getvalue()
            )
        return response


def main(config: str, name: str, answers: str) -> None:
    """Serve until killed."""
    model = pipeline.Op(name="model", input_ops=[pipeline.RequestOp()])
    kind = TensorResponse if answers == "tensors" else pipeline.ResponseOp
    server = pipeline.PipelineServer(name)
    server.set_response_op(kind(input_ops=[model]))
    server.prepare_server(yml_file=config)
    server.run_server()


if __name__ == "__main__":
    main(*sys.argv[1:])

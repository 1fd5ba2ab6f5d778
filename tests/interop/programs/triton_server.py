"""NVIDIA Triton with the tiny model: `python triton_server.py GRPC_PORT HTTP_PORT METRICS_PORT`."""

from __future__ import annotations

import sys
from typing import Any

import network  # type: ignore[import-not-found]  # it lies beside this file
import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

HOST = "127.0.0.1"
MAX_BATCH = 64


@batch  # type: ignore[untyped-decorator]
def label(**inputs: Any) -> dict[str, Any]:
    return {network.OUTPUT: network.answer(inputs[network.INPUT])}


def main(grpc_port: int, http_port: int, metrics_port: int) -> None:
    config = TritonConfig(
        grpc_address=HOST,
        grpc_port=grpc_port,
        http_address=HOST,
        http_port=http_port,
        metrics_address=HOST,
        metrics_port=metrics_port,
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name=network.MODEL,
            infer_func=label,
            inputs=[Tensor(name=network.INPUT, dtype=np.float32, shape=(network.FEATURES,))],
            outputs=[Tensor(name=network.OUTPUT, dtype=np.float32, shape=(network.CLASSES,))],
            config=ModelConfig(max_batch_size=MAX_BATCH, batcher=DynamicBatcher()),
        )
        triton.serve()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""NVIDIA's clients ask a server for the labels of the tiny model; a process of its own.

`python triton_asks.py MODEL INPUT OUTPUT INPUTS.npy OUTPUTS.npz LANE=ADDRESS...` writes the labels
of each lane: `grpc`, `binary` and `json`.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http

#: Of each lane: the client, and how it is told to send and to ask.
LANES: dict[str, tuple[Any, dict[str, bool], dict[str, str] | None]] = {
    "grpc": (over_grpc, {}, None),
    "binary": (over_http, {"binary_data": True}, None),
    # KServe reads JSON only where it is told that it is some.
    "json": (over_http, {"binary_data": False}, {"content-type": "application/json"}),
}


def ask(lane: str, address: str, model: str, names: tuple[str, str], x: Any) -> Any:
    kind, how, headers = LANES[lane]
    with kind.InferenceServerClient(address) as client:
        if not (client.is_server_live() and client.is_model_ready(model)):
            raise RuntimeError(f"{address} is not ready")
        tensor = kind.InferInput(names[0], list(x.shape), "FP32")
        tensor.set_data_from_numpy(x, **how)
        wanted = [kind.InferRequestedOutput(names[1], **how)]
        # Without an id KServe answers an error 500 over HTTP.
        answer = client.infer(model, [tensor], outputs=wanted, request_id="1", headers=headers)
        return answer.as_numpy(names[1])


def main(model: str, name: str, output: str, inputs: str, outputs: str, *lanes: str) -> None:
    x = np.load(inputs)
    labels = {}
    for lane in lanes:
        kind, _, address = lane.partition("=")
        labels[kind] = ask(kind, address, model, (name, output), x)
    np.savez(outputs, **labels)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""What a user of NVIDIA's client does with a server; a process of its own.

Two stubs of one protocol cannot live in one process, so this one imports nothing of ours:
`python triton_program.py ADDRESS MODEL INPUTS.npz OUTPUTS.npz` prints what it saw as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

DATATYPES = {"float32": "FP32", "float64": "FP64"}


def infer(client: Any, model: str, name: str, array: Any, outputs: list[str] | None = None) -> Any:
    """One request of one input, through the client's own encoder."""
    tensor = triton.InferInput(name, list(array.shape), DATATYPES[array.dtype.name])
    tensor.set_data_from_numpy(array)
    wanted = [triton.InferRequestedOutput(output) for output in outputs] if outputs else None
    return client.infer(model, [tensor], request_id="17", outputs=wanted, client_timeout=30)


def refusal(client: Any, *request: Any) -> list[str]:
    """Status and words of a request that the server does not take."""
    try:
        infer(client, *request)
    except InferenceServerException as error:
        return [str(error.status()), str(error.message())]
    return ["OK", ""]


def main(address: str, model: str, inputs: str, outputs: str) -> None:
    image = np.load(inputs)["image"]
    with triton.InferenceServerClient(address) as client:
        every = infer(client, model, "image", image)
        names = [tensor.name for tensor in every.get_response().outputs]
        np.savez(outputs, **{name: every.as_numpy(name) for name in names})
        some = infer(client, model, "image", image, [names[1]])
        wrong = np.zeros((2, 1, 9, 8), dtype=np.float32)
        seen = {
            "live": client.is_server_live(),
            "ready": client.is_server_ready(),
            "model_ready": client.is_model_ready(model),
            "server": client.get_server_metadata(as_json=True),
            "model": client.get_model_metadata(model, as_json=True),
            "request_id": every.get_response().id,
            "asked_for_one": [tensor.name for tensor in some.get_response().outputs],
            "wrong_shape": refusal(client, model, "image", wrong),
            "wrong_datatype": refusal(client, model, "image", image.astype(np.float64)),
            "wrong_input": refusal(client, model, "picture", image),
            "wrong_output": refusal(client, model, "image", image, ["logit"]),
            "wrong_model": refusal(client, "vgg", "image", image),
        }
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""What a user of NVIDIA's clients does with a server, by every lane; a process of its own.

Two stubs of one protocol cannot live in one process, so this one imports nothing of ours.
`python triton_client.py GRPC_ADDRESS HTTP_ADDRESS MODEL INPUTS.npz OUTPUTS.npz` writes the labels
of each lane as "LANE:OUTPUT" and prints what else it saw as JSON.
"""

from __future__ import annotations

import json
import queue
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
import tritonclient.utils.shared_memory as memory
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

WAIT_S = 30
Labels = dict[str, Any]


def tensor(kind: Any, image: Any, **how: Any) -> Any:
    datatype = np_to_triton_dtype(image.dtype)
    found = kind.InferInput("image", list(image.shape), datatype)
    if how.get("shared"):
        found.set_shared_memory("batch", image.nbytes)
    else:
        found.set_data_from_numpy(image, **how)
    return found


def unary(client: Any, kind: Any, model: str, image: Any, outputs: Any, **how: Any) -> Labels:
    answer = client.infer(model, [tensor(kind, image, **how)], outputs=outputs)
    described = answer.get_response()
    if isinstance(described, dict):  # over HTTP
        return {one["name"]: answer.as_numpy(one["name"]) for one in described["outputs"]}
    return {one.name: answer.as_numpy(one.name) for one in described.outputs}


def stream(client: Any, model: str, image: Any) -> tuple[Labels, list[str]]:
    """Two good requests over one stream with a bad one between them; the labels of the last."""
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    wrong = np.zeros((2, 1, 9, 8), dtype=np.float32)
    for number, given in enumerate((image, wrong, image)):
        client.async_stream_infer(model, [tensor(over_grpc, given)], request_id=str(number))
    seen, labels = [], {}
    for _ in range(3):
        result, error = answers.get(timeout=WAIT_S)
        if error is not None:
            seen.append(str(error.message()))
            continue
        seen.append(result.get_response().id)
        labels = {one.name: result.as_numpy(one.name) for one in result.get_response().outputs}
    client.stop_stream()
    return labels, seen


@contextmanager
def regions(client: Any, key: str, image: Any) -> Iterator[Any]:
    """The image in shared memory, with room for labels behind it, registered as "batch"."""
    size = image.nbytes + (1 << 16)
    handle = memory.create_shared_memory_region("batch", key, size, create_only=True)
    try:
        memory.set_shared_memory_region(handle, [image])
        client.register_system_shared_memory("batch", key, size)
        yield handle
        client.unregister_system_shared_memory("batch")
    finally:
        memory.destroy_shared_memory_region(handle)


def shared(client: Any, kind: Any, key: str, model: str, image: Any, known: Labels) -> Labels:
    """Inputs and outputs in shared memory."""
    with regions(client, key, image) as handle:
        at, places, wanted = image.nbytes, {}, []
        for name, labels in known.items():
            places[name] = at
            output = kind.InferRequestedOutput(name)
            output.set_shared_memory("batch", labels.nbytes, offset=at)
            wanted.append(output)
            at += labels.nbytes
        client.infer(model, [tensor(kind, image, shared=True)], outputs=wanted)

        def read(name: str, like: Any) -> Any:
            found = memory.get_contents_as_numpy(handle, like.dtype, like.shape, places[name])
            return found.copy()

        return {name: read(name, labels) for name, labels in known.items()}


def refusal(call: Callable[[], Any]) -> list[str]:
    try:
        call()
    except InferenceServerException as error:
        return [str(error.status()), str(error.message())]
    return ["OK", ""]


def main(grpc_address: str, http_address: str, model: str, inputs: str, outputs: str) -> None:
    image = np.load(inputs)["image"]
    with (
        over_grpc.InferenceServerClient(grpc_address) as grpc,
        over_http.InferenceServerClient(http_address) as http,
    ):
        labels = {"grpc": unary(grpc, over_grpc, model, image, None)}
        known = labels["grpc"]

        def ask(served: str = model, output: str = "") -> Any:
            outputs = [over_grpc.InferRequestedOutput(output)] if output else None
            inputs = [tensor(over_grpc, image)]
            answer = grpc.infer(served, inputs, request_id="17", outputs=outputs)
            return answer.get_response()

        def wanted(binary: bool) -> list[Any]:
            return [over_http.InferRequestedOutput(name, binary_data=binary) for name in known]

        labels["stream"], streamed = stream(grpc, model, image)
        labels["json"] = unary(http, over_http, model, image, wanted(False), binary_data=False)
        labels["binary"] = unary(http, over_http, model, image, wanted(True))
        labels["default"] = unary(http, over_http, model, image, None)
        labels["grpc-shared"] = shared(grpc, over_grpc, "/edl-triton-grpc", model, image, known)
        labels["http-shared"] = shared(http, over_http, "edl-triton-http", model, image, known)
        lost = refusal(lambda: grpc.infer(model, [tensor(over_grpc, image, shared=True)]))
        with regions(http, "/edl-triton-both", image):
            labels["both"] = unary(grpc, over_grpc, model, image, None, shared=True)
            status = http.get_system_shared_memory_status()
        seen = {
            "streamed": streamed,
            "statistics": http.get_inference_statistics(model),
            "grpc_statistics": grpc.get_inference_statistics(model, as_json=True),
            "ready": http.is_server_live() and http.is_model_ready(model, "1"),
            "grpc_ready": grpc.is_server_live() and grpc.is_model_ready(model),
            "request_id": ask().id,
            "asked_for_one": [one.name for one in ask(output=list(known)[1]).outputs],
            "server": http.get_server_metadata(),
            "grpc_server": grpc.get_server_metadata(as_json=True),
            "model": http.get_model_metadata(model),
            "grpc_model": grpc.get_model_metadata(model, as_json=True),
            "index": http.get_model_repository_index(),
            "grpc_index": grpc.get_model_repository_index(as_json=True),
            "regions": status,
            "no_regions": grpc.get_system_shared_memory_status(as_json=True),
            "lost": lost,
            "unknown_model": refusal(lambda: http.get_model_metadata("vgg")),
            "grpc_unknown_model": refusal(lambda: ask(served="vgg")),
        }
    arrays = {f"{lane}:{name}": a for lane, some in labels.items() for name, a in some.items()}
    np.savez(outputs, **arrays)
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])

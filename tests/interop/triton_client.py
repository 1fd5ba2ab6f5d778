"""What a user of NVIDIA's clients does with a server, by every lane; a process of its own.

Two stubs of one protocol cannot live in one process, so this one imports nothing of ours.
`python triton_client.py GRPC_ADDRESS HTTP_ADDRESS MODEL KNOWN.npz` is given a batch `image` and its
labels, and fails where it sees anything else.
"""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
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


def stream(client: Any, model: str, image: Any) -> Labels:
    """Two good requests over one stream with a bad one between them; the labels of the last."""
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    wrong = np.zeros((2, 1, 9, 8), dtype=np.float32)
    for number, given in enumerate((image, wrong, image)):
        client.async_stream_infer(model, [tensor(over_grpc, given)], request_id=str(number))
    (first, _), (_, error), (last, _) = (answers.get(timeout=WAIT_S) for _ in range(3))
    expected = "input 'image' has shape [2, 1, 9, 8], expected [-1, 1, 8, 8]"
    assert expected in str(error.message()), error
    assert (first.get_response().id, last.get_response().id) == ("0", "2")
    client.stop_stream()
    return {one.name: last.as_numpy(one.name) for one in last.get_response().outputs}


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


def refused(call: Callable[[], Any], status: str, words: str) -> None:
    with pytest.raises(InferenceServerException, match=words) as caught:
        call()
    assert str(caught.value.status()) == status


def check(lane: str, labels: Labels, known: Labels) -> None:
    """These are the known labels, bit for bit."""
    assert labels.keys() == known.keys(), lane
    for name, array in known.items():
        assert (labels[name].dtype, labels[name].shape) == (array.dtype, array.shape), (lane, name)
        assert labels[name].tobytes() == array.tobytes(), (lane, name)


def check_lanes(grpc: Any, http: Any, model: str, image: Any, known: Labels) -> int:
    """The labels come by every lane; returns how many answers that took."""

    def wanted(binary: bool) -> list[Any]:
        return [over_http.InferRequestedOutput(name, binary_data=binary) for name in known]

    check("grpc", unary(grpc, over_grpc, model, image, None), known)
    check("stream", stream(grpc, model, image), known)
    json_labels = unary(http, over_http, model, image, wanted(False), binary_data=False)
    check("json", json_labels, known)
    check("binary", unary(http, over_http, model, image, wanted(True)), known)
    check("default", unary(http, over_http, model, image, None), known)
    for client, kind, key in ((grpc, over_grpc, "/edl-triton-grpc"), (http, over_http, "edl-http")):
        check(key, shared(client, kind, key, model, image, known), known)
    with regions(http, "/edl-triton-both", image):
        check("both", unary(grpc, over_grpc, model, image, None, shared=True), known)
        (region,) = http.get_system_shared_memory_status()
        assert (region["name"], region["key"], region["offset"]) == ("batch", "/edl-triton-both", 0)
    assert grpc.get_system_shared_memory_status(as_json=True) == {}
    lost = "no region 'batch' of this caller is registered here"
    of_no_region = [tensor(over_grpc, image, shared=True)]
    refused(lambda: grpc.infer(model, of_no_region), "StatusCode.INVALID_ARGUMENT", lost)
    return 9  # two of the stream


def check_descriptions(grpc: Any, http: Any, model: str) -> None:
    for client, version in ((http, "1"), (grpc, "")):
        assert client.is_server_live()
        assert client.is_model_ready(model, version)
    server = http.get_server_metadata()
    assert server["name"] == grpc.get_server_metadata(as_json=True)["name"] == "edl-teacher"
    assert "system_shared_memory" in server["extensions"]
    image = {"name": "image", "datatype": "FP32", "shape": ["-1", "1", "8", "8"]}
    assert grpc.get_model_metadata(model, as_json=True)["inputs"] == [image]
    assert http.get_model_metadata(model)["inputs"] == [image | {"shape": [-1, 1, 8, 8]}]
    index = {"name": model, "version": "1", "state": "READY"}
    assert http.get_model_repository_index() == [index | {"reason": ""}]
    assert grpc.get_model_repository_index(as_json=True) == {"models": [index]}


def main(grpc_address: str, http_address: str, model: str, file: str) -> None:
    known = dict(np.load(file))
    image, names = known.pop("image"), list(known)
    with (
        over_grpc.InferenceServerClient(grpc_address) as grpc,
        over_http.InferenceServerClient(http_address) as http,
    ):
        answered = check_lanes(grpc, http, model, image, known)
        check_descriptions(grpc, http, model)
        (statistics,) = http.get_inference_statistics(model)["model_stats"]
        assert statistics["inference_stats"]["success"]["count"] == answered
        assert statistics["inference_stats"]["fail"]["count"] == 2  # of the stream; no region
        counts = (statistics["execution_count"], statistics["inference_count"])
        assert counts == (answered, len(image) * answered)
        (same,) = grpc.get_inference_statistics(model, as_json=True)["model_stats"]
        assert same["execution_count"] == str(answered)

        def ask(served: str, output: str) -> Any:
            inputs, outputs = [tensor(over_grpc, image)], [over_grpc.InferRequestedOutput(output)]
            return grpc.infer(served, inputs, request_id="17", outputs=outputs).get_response()

        asked = ask(model, names[1])
        assert (asked.id, [one.name for one in asked.outputs]) == ("17", names[1:])
        unknown = "unknown model 'vgg'"
        refused(lambda: http.get_model_metadata("vgg"), "404", unknown)
        refused(lambda: ask("vgg", names[0]), "StatusCode.INVALID_ARGUMENT", unknown)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The process of a bare loop: a network in its framework, without code of a teacher.

    python -m edl.benchmarks.teachers.bare_loop CHANNEL FRAMEWORK NETWORK DEVICE ROWS TOP FOLDER

FRAMEWORK is "torch" or "onnx", NETWORK a factory (`module:function`) of a PyTorch module, and
DEVICE a device of torch; for "onnx" the network is exported to FOLDER. The first message has the
model that a teacher should serve. The message "run" has a number of batches; the answer has the
seconds that they took: copying bytes from the host to the device, the network, and copying the TOP
greatest logits back.
"""

from __future__ import annotations

import importlib
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ...proto.channel import Channel
from ...runtime.supervise import end_with_parent
from .networks import picture

#: Warm-up batches, which choose kernels and allocate memory.
_WARM_UP = 10

#: A function that labels one batch.
Label = Callable[[], Any]


def main(
    channel_fd: int, framework: str, factory: str, device: str, rows: int, top: int, folder: Path
) -> None:
    """Load the network and run it on request, until the channel ends."""
    end_with_parent(at_once=True)
    channel = Channel.attach(channel_fd)
    if framework == "onnx":
        model = export(factory, folder)
        label = onnxruntime_loop(model, device, rows, top)
    else:
        model = factory
        label = torch_loop(factory, device, rows, top)
    for _ in range(_WARM_UP):
        label()
    channel.send("ready", model=model)
    time_runs(channel, label)


def time_runs(channel: Channel, label: Label) -> None:
    """Answer each message with the seconds of labelling its number of batches."""
    for message in channel:
        began_s = time.perf_counter()
        for _ in range(message["batches"]):
            label()
        channel.send("ran", seconds=time.perf_counter() - began_s)


def torch_loop(factory: str, device: str, rows: int, top: int) -> Label:
    """Return a loop of the factory's module in PyTorch, without TF32, as in a teacher."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    network = _made(factory)[0].to(device).eval()
    batch = picture(rows)

    def label() -> tuple[Any, Any]:
        with torch.inference_mode():
            logits = network(torch.from_numpy(batch).to(device))["logits"]
            values, classes = logits.topk(top)
            return values.half().cpu().numpy(), classes.cpu().numpy()

    return label


def onnxruntime_loop(model: str, device: str, rows: int, top: int) -> Label:
    """Return a loop of an exported file in onnxruntime, without TF32, as in a teacher."""
    import onnxruntime

    provider: Any = "CPUExecutionProvider"
    if device == "cuda":
        onnxruntime.preload_dlls()
        exact = {"use_tf32": 0, "cudnn_conv_algo_search": "HEURISTIC"}
        provider = ("CUDAExecutionProvider", exact)
    session = onnxruntime.InferenceSession(model, providers=[provider])
    inputs = {"image": picture(rows)}

    def label() -> tuple[Any, Any]:
        [logits] = session.run(None, inputs)
        classes = np.argpartition(logits, -top, axis=-1)[:, -top:]
        return np.take_along_axis(logits, classes, axis=-1).astype(np.float16), classes

    return label


def export(factory: str, folder: Path) -> str:
    """Export the factory's module to ONNX, for any number of rows; return the file's path."""
    import torch

    network, [image] = _made(factory)
    file = folder / "network.onnx"
    names = {"input_names": ["image"], "output_names": ["logits"]}
    rows = {"image": {0: "rows"}, "logits": {0: "rows"}}
    with warnings.catch_warnings():
        # The exporter without dynamo warns, but needs no further package.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network.eval(), (image,), str(file), dynamo=False, dynamic_axes=rows, **names
        )
    return str(file)


def _made(factory: str) -> tuple[Any, list[Any]]:
    module, _, function = factory.partition(":")
    made: tuple[Any, list[Any]] = getattr(importlib.import_module(module), function)()
    return made


if __name__ == "__main__":
    fd, framework, factory, device, rows, top, folder = sys.argv[1:]
    main(int(fd), framework, factory, device, int(rows), int(top), Path(folder))

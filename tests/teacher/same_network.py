"""One tiny network of equal weights in the words of every backend: as factories and as files.

A convolution of one channel, ReLU, and a linear layer: logits of 10 classes, and the features below
them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edl.proto.arena import Array

NAME = "edl.tests.teacher.same_network"
IMAGE = "image:FP32:-1,1,8,8"


class Weights(NamedTuple):
    kernel: Array
    kernel_bias: Array
    matrix: Array
    bias: Array


@cache
def weights() -> Weights:
    noise = np.random.default_rng(7)
    shapes = [(4, 1, 3, 3), (4,), (144, 10), (10,)]
    return Weights(*(noise.standard_normal(shape, dtype=np.float32) * 0.3 for shape in shapes))


def by_paddle() -> Any:
    from edl.teacher.backends.paddle import import_paddle

    paddle = import_paddle()

    class Network(paddle.nn.Layer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.convolution = paddle.nn.Conv2D(1, 4, 3)
            self.linear = paddle.nn.Linear(144, 10)
            own = (*self.convolution.parameters(), *self.linear.parameters())
            for parameter, value in zip(own, weights(), strict=True):
                parameter.set_value(value)

        def forward(self, image: Any) -> Any:
            features = paddle.nn.functional.relu(self.convolution(image)).flatten(1)
            return self.linear(features), features

    return Network(), [paddle.static.InputSpec([None, 1, 8, 8], "float32", "image")]


def by_torch() -> Any:
    import torch

    class Network(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.convolution = torch.nn.Conv2d(1, 4, 3)
            self.drop = torch.nn.Dropout(0.5)  # eval mode takes it out
            self.linear = torch.nn.Linear(144, 10)
            kernel, kernel_bias, matrix, bias = (torch.tensor(value) for value in weights())
            with torch.no_grad():
                self.convolution.weight.copy_(kernel)
                self.convolution.bias.copy_(kernel_bias)
                self.linear.weight.copy_(matrix.T)
                self.linear.bias.copy_(bias)

        def forward(self, image: Any) -> Any:
            features = torch.relu(self.convolution(image)).flatten(1)
            return self.linear(self.drop(features)), features

    return Network(), [torch.zeros(1, 1, 8, 8)]


def by_numpy() -> Any:
    return label, [IMAGE], ["logits:FP32:-1,10", "features:FP32:-1,144"]


def label(arrays: Mapping[str, Array]) -> dict[str, Array]:
    kernel, kernel_bias, matrix, bias = weights()
    windows = np.lib.stride_tricks.sliding_window_view(arrays["image"][:, 0], (3, 3), axis=(1, 2))
    maps = np.einsum("nhwij,cij->nchw", windows, kernel[:, 0]) + kernel_bias[:, None, None]
    features = np.maximum(maps, 0).reshape(len(maps), -1)
    return {"logits": features @ matrix + bias, "features": features}


def write_paddle(folder: Path) -> Path:
    from edl.teacher.backends.paddle import import_paddle

    layer, specs = by_paddle()
    layer.eval()
    import_paddle().jit.save(layer, str(folder / "net"), input_spec=specs)
    return folder / "net.json"


def write_onnx(folder: Path, *, external: bool = False) -> Path:
    import onnx
    from onnx import helper, numpy_helper

    def node(operator: str, inputs: str, output: str, **attributes: int) -> Any:
        return helper.make_node(operator, inputs.split(), [output], **attributes)

    def value(name: str, *shape: int | str) -> Any:
        return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        [
            node("Conv", "image kernel kernel_bias", "maps"),
            node("Relu", "maps", "positive"),
            node("Flatten", "positive", "features", axis=1),
            node("Gemm", "features matrix bias", "logits"),
        ],
        "net",
        [value("image", "batch", 1, 8, 8)],
        [value("logits", "batch", 10), value("features", "batch", 144)],
        [numpy_helper.from_array(array, name) for name, array in weights()._asdict().items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file = folder / "net.onnx"
    if external:
        onnx.save(
            model, str(file), save_as_external_data=True, location="net.weights", size_threshold=0
        )
    else:
        onnx.save(model, str(file))
    return file


def write_script(folder: Path) -> Path:
    import torch

    module, (example,) = by_torch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, and in use
        torch.jit.trace(module.eval(), example).save(str(folder / "net.pt"))
    return folder / "net.pt"


def write_exported(folder: Path, *, training: bool = False) -> Path:
    import torch

    module, (example,) = by_torch()
    program = torch.export.export(
        module.train(training),
        (),
        kwargs={"image": example.repeat(2, 1, 1, 1)},
        dynamic_shapes={"image": {0: torch.export.Dim("batch")}},
    )
    torch.export.save(program, str(folder / "net.pt2"))
    return folder / "net.pt2"

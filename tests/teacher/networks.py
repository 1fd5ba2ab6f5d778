"""Tiny Paddle networks, to be exported and as factories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edl.teacher.backends.paddle_runtime import import_paddle

paddle = import_paddle()
Layer: Any = paddle.nn.Layer


class Convolution(Layer):  # type: ignore[misc]
    """Two outputs: logits of 10 classes, and the features below them."""

    def __init__(self) -> None:
        super().__init__()
        paddle.seed(7)
        self.convolution = paddle.nn.Conv2D(1, 4, 3)
        self.linear = paddle.nn.Linear(144, 10)

    def forward(self, image: Any) -> Any:
        features = paddle.nn.functional.relu(self.convolution(image)).flatten(1)
        return self.linear(features), features


class Linear(Layer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        paddle.seed(3)
        self.linear = paddle.nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return {"logits": self.linear(x), "twice": x * 2}


def _spec(*shape: int | None, dtype: str = "float32", name: str | None = None) -> Any:
    return paddle.static.InputSpec(list(shape), dtype, name)


def steered() -> Any:
    return Linear(), [_spec(None, 4)]


def bare() -> Any:
    return Linear()


def not_a_layer() -> Any:
    return 3


class _Function(Layer):  # type: ignore[misc]
    def __init__(self, function: Any) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: Any) -> Any:
        return self._function(x)


def nothing() -> Any:
    return _Function(lambda x: {}), [_spec(None, 4)]


def mean_of_batch() -> Any:
    return _Function(lambda x: x.mean(axis=0)), [_spec(None, 4)]


def integers() -> Any:
    return _Function(lambda x: [x + 1, (x > 0)]), [_spec(None, 2, dtype="int64", name="ids")]


def fails_on_example() -> Any:
    return _Function(lambda x: x @ paddle.ones([5, 5])), [_spec(None, 4)]


def export(folder: Path, name: str = "net") -> Path:
    """Write the convolution as `folder/name.json` and `.pdiparams`; returns the prefix."""
    layer = Convolution()
    layer.eval()
    prefix = folder / name
    paddle.jit.save(layer, str(prefix), input_spec=[_spec(None, 1, 8, 8, name="image")])
    return prefix


def export_without_outputs(folder: Path) -> Path:
    """The same, with every fetch taken out of the program: readable, and of no use."""
    program = export(folder).with_suffix(".json")
    content = json.loads(program.read_text())
    block = content["program"]["regions"][0]["blocks"][0]
    block["ops"] = [operation for operation in block["ops"] if operation["#"] != "1.fetch"]
    program.write_text(json.dumps(content))
    return program

"""Tiny Paddle networks as factories, and one to be exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edl.teacher.backends.paddle import import_paddle
from edl.tests.teacher import same_network

paddle = import_paddle()
Layer: Any = paddle.nn.Layer


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


class _Function(Layer):  # type: ignore[misc]
    def __init__(self, function: Any) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: Any) -> Any:
        return self._function(x)


def nothing() -> Any:
    return _Function(lambda x: {}), [_spec(None, 4)]


def integers() -> Any:
    return _Function(lambda x: [x + 1, (x > 0)]), [_spec(None, 2, dtype="int64", name="ids")]


def bfloat16() -> Any:
    return _Function(lambda x: x * 2), [_spec(None, 4, dtype="bfloat16", name="x")]


def fails_on_example() -> Any:
    return _Function(lambda x: x @ paddle.ones([5, 5])), [_spec(None, 4)]


def export(folder: Path) -> Path:
    """Write the network of `same_network` for paddle.inference; returns the prefix of its files."""
    return same_network.write_paddle(folder).with_suffix("")

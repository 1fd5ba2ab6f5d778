"""Tiny real Paddle networks: to be exported, and as factories that do what a test needs.

`steered` obeys its input: the first number of a batch says what happens (`KILL`, `HOLD`, ...). What
it waits for is a file, so that a test decides for how long.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from edl.teacher.backends.paddle_runtime import import_paddle

paddle = import_paddle()
Layer: Any = paddle.nn.Layer

HOLD_VARIABLE = "EDL_TEST_HOLD"
KILL, HOLD, NAN, REFUSE, FAIL = 1001.0, 1002.0, 1003.0, 1004.0, 1005.0


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


class Steered(Layer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        paddle.seed(3)
        self.linear = paddle.nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        order = float(x[0, 0])
        if order == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        elif order == HOLD:
            go = Path(os.environ[HOLD_VARIABLE])
            go.with_suffix(".held").touch()
            while not go.exists():
                time.sleep(0.005)
        elif order == NAN:
            x = x * float("nan")
        elif order == REFUSE:
            raise ValueError("no such word")
        elif order == FAIL:
            raise MemoryError("out of device memory")
        return {"logits": self.linear(x), "twice": x * 2}


def _spec(*shape: int | None, dtype: str = "float32", name: str | None = None) -> Any:
    return paddle.static.InputSpec(list(shape), dtype, name)


def convolution() -> Any:
    return Convolution(), [_spec(None, 1, 8, 8)]


def steered() -> Any:
    return Steered(), [_spec(None, 4)]


def bare() -> Any:
    return Steered()


def not_a_layer() -> Any:
    return 3


def raises() -> Any:
    raise KeyError("weights.pdparams")


class _Function(Layer):  # type: ignore[misc]
    def __init__(self, function: Any) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: Any) -> Any:
        return self._function(x)


def nothing() -> Any:
    return _Function(lambda x: {}), [_spec(None, 4)]


def dies() -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def always_nan() -> Any:
    return _Function(lambda x: x * float("nan")), [_spec(None, 4)]


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

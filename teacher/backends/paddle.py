"""Backend `paddle`: exported models by Paddle Inference, networks of a factory eagerly."""

from __future__ import annotations

from .kind import Files, Kind, Things
from .paddle_dygraph import PaddleDygraph, is_layer
from .paddle_inference import WEIGHTS, PaddleInference

KIND = Kind(
    name="paddle",
    files=Files(
        "a .json or .pdmodel file with a .pdiparams file of the same name beside it (Paddle)",
        (".json", ".pdmodel"),
        PaddleInference,
        beside=WEIGHTS,
    ),
    things=Things("a paddle.nn.Layer", is_layer, PaddleDygraph),
    package="paddle",
    precisions=("fp32", "bf16"),
)

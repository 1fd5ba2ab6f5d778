"""Backend `paddle`: exported models by Paddle Inference, networks of a factory eagerly."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import Any

from ...errors import ModelError
from ...proto.arena import Array
from ..model import FREE, ModelSpec, TensorSpec
from . import content, paddle_runtime
from .declared import by_name, declared, outputs_by_trial
from .kind import Files, Kind, Made, Settings, Things
from .paddle_inference import WEIGHTS, PaddleInference


class PaddleDygraph:
    """A `paddle.nn.Layer`, run eagerly in eval mode and without gradients.

    Args:
        made: the layer, and `paddle.static.InputSpec`s, one for each argument of its `forward`.
        settings: how to run it. `threads` are as the environment of this process sets them, and
            only stated here; `inputs` take the place of the InputSpecs.

    Raises:
        ModelError: the inputs are not known, or the layer does not run.
    """

    def __init__(self, made: Made, settings: Settings) -> None:
        if settings.precision != "fp32":
            raise ModelError(
                f"{settings.precision} is for exported models: write {made.name} with "
                "paddle.jit.save"
            )
        self._paddle = paddle_runtime.import_paddle()
        gpu = paddle_runtime.check_device(self._paddle, settings.device)
        place = "cpu" if gpu is None else f"gpu:{gpu}"
        self._paddle.set_device(place)
        self._layer = made.thing.to(place)  # its factory did not know where
        self._layer.eval()
        self._inputs = settings.inputs or _declared_by(made) or settings.behind()
        if not self._inputs:
            raise ModelError(
                f"the inputs of {made.name} are not known: return (layer, [InputSpec(shape, dtype, "
                "name)]) from it, or declare them with --input"
            )
        outputs = settings.outputs or declared(made.outputs)
        self._spec = ModelSpec(
            platform="paddle_dygraph",
            inputs=self._inputs,
            outputs=outputs_by_trial(self.run, self._inputs, outputs, made.name),
            content_id=content.of_code(
                made.name,
                made.thing,
                ((name, value.numpy()) for name, value in self._layer.state_dict().items()),
            ),
            numerics=paddle_runtime.numerics(self._paddle, "paddle-dygraph", gpu, settings.threads),
        )

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        with paddle_runtime.translated("the model"), self._paddle.no_grad():
            given = [self._paddle.to_tensor(inputs[tensor.name]) for tensor in self._inputs]
            return {name: tensor.numpy() for name, tensor in by_name(self._layer(*given)).items()}


def is_layer(thing: object) -> bool:
    """Whether `thing` is a `paddle.nn.Layer`; paddle is there when it is."""
    paddle: Any = sys.modules.get("paddle")
    return paddle is not None and isinstance(thing, paddle.nn.Layer)


def _declared_by(made: Made) -> tuple[TensorSpec, ...]:
    arguments = list(inspect.signature(made.thing.forward).parameters)
    return declared(made.inputs, arguments, _of_input_spec)


def _of_input_spec(spec: Any, argument: str) -> TensorSpec:
    try:
        shape = tuple(FREE if size is None else int(size) for size in spec.shape)
        return TensorSpec(spec.name or argument, paddle_runtime.datatype(spec.dtype), shape)
    except AttributeError:
        raise ModelError(f"{spec!r} declares no input: expected an InputSpec") from None


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

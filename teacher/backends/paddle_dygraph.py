"""Runs a dynamic-graph Paddle network that a factory `module:function` makes."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import EdlError, ModelError
from ...proto.arena import Array
from ...proto.tensors import datatype_of
from ..model import FREE, ModelSpec, TensorSpec
from . import paddle_runtime
from .example import example_batch


class PaddleDygraph:
    """A `paddle.nn.Layer`, run eagerly in eval mode and without gradients.

    Args:
        factory: "module:function"; the function takes nothing and returns the layer, or the layer
            and a list of `paddle.static.InputSpec`, one for each argument of its `forward`.
        device: "cpu" or "gpu:N".
        threads: CPU threads, as the environment of this process sets them; only stated here.
        inputs: takes the place of the InputSpecs.

    Raises:
        ModelError: the factory cannot be called, gives something else, or its layer does not run.
    """

    def __init__(
        self,
        factory: str,
        *,
        device: str = "cpu",
        threads: int = 1,
        inputs: Sequence[TensorSpec] = (),
    ) -> None:
        self._paddle = paddle_runtime.import_paddle()
        gpu = paddle_runtime.check_device(self._paddle, device)
        self._paddle.set_device("cpu" if gpu is None else f"gpu:{gpu}")
        self._layer, specs = _make(self._paddle, factory)
        self._layer.eval()
        self._inputs = tuple(inputs) or _inputs_of(self._layer, specs, factory)
        self._spec = ModelSpec(
            platform="paddle_dygraph",
            inputs=self._inputs,
            outputs=self._outputs_by_trial(factory),
            content_id=_content_id(self._layer, factory),
            numerics=paddle_runtime.numerics(self._paddle, "paddle-dygraph", gpu, threads),
        )

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        with paddle_runtime.translated("the model"), self._paddle.no_grad():
            given = [self._paddle.to_tensor(inputs[tensor.name]) for tensor in self._inputs]
            return {name: tensor.numpy() for name, tensor in _named(self._layer(*given)).items()}

    def _outputs_by_trial(self, factory: str) -> tuple[TensorSpec, ...]:
        """Only a run tells which outputs an eager network has."""
        try:
            outputs = self.run(example_batch(self._inputs, 1))
        except EdlError as error:
            raise ModelError(f"the network of {factory} does not run: {error}") from error
        if not outputs:
            raise ModelError(f"the network of {factory} has no outputs")
        return tuple(
            TensorSpec(name, datatype_of(array.dtype), (FREE, *array.shape[1:]))
            for name, array in outputs.items()
        )


def _make(paddle: Any, factory: str) -> tuple[Any, Sequence[Any]]:
    module_name, _, function_name = factory.partition(":")
    try:
        made = getattr(importlib.import_module(module_name), function_name)()
    except (ImportError, AttributeError) as error:
        raise ModelError(f"no factory {factory}: {error}") from error
    except Exception as error:  # the user's code: whatever it raises is theirs to read
        raise ModelError(f"{factory} raised {type(error).__name__}: {error}") from error
    layer, specs = made if isinstance(made, tuple) else (made, ())
    if not isinstance(layer, paddle.nn.Layer):
        raise ModelError(
            f"{factory}() returned {type(layer).__name__}: expected a paddle.nn.Layer, or one and "
            "a list of paddle.static.InputSpec"
        )
    return layer, specs


def _inputs_of(layer: Any, specs: Sequence[Any], factory: str) -> tuple[TensorSpec, ...]:
    if not specs:
        raise ModelError(
            f"the inputs of {factory} are not known: return (layer, [InputSpec(shape, dtype, "
            "name)]) from it, or declare them with --input"
        )
    arguments = list(inspect.signature(layer.forward).parameters)
    names = [spec.name or argument for spec, argument in zip(specs, arguments, strict=False)]
    if len(names) < len(specs):
        raise ModelError(f"{factory}: {len(specs)} InputSpecs for {len(arguments)} arguments")
    return tuple(
        TensorSpec(name, paddle_runtime.datatype(spec.dtype), _shape(spec.shape))
        for name, spec in zip(names, specs, strict=True)
    )


def _shape(shape: Sequence[int | None]) -> tuple[int, ...]:
    return tuple(FREE if size is None else int(size) for size in shape)


def _named(outputs: Any) -> dict[str, Any]:
    """Outputs under the keys of a dict, else under `output_0`, `output_1`, ..."""
    if isinstance(outputs, Mapping):
        return {str(name): tensor for name, tensor in outputs.items()}
    if not isinstance(outputs, list | tuple):
        outputs = [outputs]
    return {f"output_{index}": tensor for index, tensor in enumerate(outputs)}


def _content_id(layer: Any, factory: str) -> str:
    digest = hashlib.sha256(factory.encode())
    for name, parameter in sorted(layer.state_dict().items()):
        array = np.ascontiguousarray(parameter.numpy())
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()

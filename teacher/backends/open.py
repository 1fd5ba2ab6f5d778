"""Chooses the backend that a model needs, and opens it."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import ModelError
from ..model import TensorSpec
from . import Backend
from .paddle_files import find_model


def is_factory(model: str) -> bool:
    """Whether `model` names a factory (`module:function`) rather than a path."""
    module, colon, function = model.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), function))


def check_model(model: str) -> None:
    """What can be said of `model` without loading a framework; raises ModelError."""
    if not is_factory(model):
        find_model(model)


def open_backend(
    model: str, *, threads: int = 1, device: str = "cpu", inputs: Sequence[TensorSpec] = ()
) -> Backend:
    """Load a model.

    Args:
        model: path of an exported model (folder, prefix or file), or a factory `module:function`.
        threads: CPU threads of one run.
        device: "cpu" or "gpu:N".
        inputs: inputs as the user declares them, where the model says less.

    Raises:
        ModelError: there is none, it cannot be read, or it is not one that a teacher can serve.
    """
    backend: Backend
    if is_factory(model):
        from .paddle_dygraph import PaddleDygraph

        backend = PaddleDygraph(model, threads=threads, device=device, inputs=inputs)
    else:
        from .paddle_inference import PaddleInference

        backend = PaddleInference(find_model(model), threads=threads, device=device, inputs=inputs)
    for tensor in (*backend.spec.inputs, *backend.spec.outputs):
        if not tensor.shape:
            raise ModelError(f"{tensor.name!r} has no dimensions: the first must be the batch")
    return backend

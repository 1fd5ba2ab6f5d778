"""Backend `callable`: a function on numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...proto.arena import Array
from ...runtime.errors import ModelError, RequestRefused
from . import ModelSpec
from .framework import gpu_of, numerics, translate_errors
from .model_source import BackendKind, FactoryResult, ModelSettings, hash_of_function
from .tensor_specs import outputs_by_trial, parse_declared


class NumpyFunction:
    """A function from a dict of arrays to a dict of arrays, the batch along axis 0 of each.

    Args:
        result: the function, with its inputs and outputs if the factory declares them.
        settings: how to run it; their `inputs` and `outputs` override those of the factory.

    Raises:
        ModelError: the device is a GPU, the inputs are unknown, or the function does not run on an
            example.
    """

    def __init__(self, result: FactoryResult, settings: ModelSettings) -> None:
        if gpu_of(settings.device) is not None:
            raise ModelError(
                f"{result.name} works on numpy arrays, which are on the CPU: --devices cpu"
            )
        self._function = result.model
        inputs = settings.inputs or parse_declared(result.inputs) or settings.preprocessed_inputs()
        if not inputs:
            raise ModelError(
                f"the inputs of {result.name} are not known: declare them with --input, or name a "
                'factory that returns (function, ["NAME:DATATYPE:DIMS", ...])'
            )
        outputs = settings.outputs or parse_declared(result.outputs)
        self.spec = ModelSpec(
            platform="callable",
            inputs=inputs,
            outputs=outputs_by_trial(self.run, inputs, outputs, result.name),
            content_id=hash_of_function(result.name, result.model),
            numerics=numerics(f"callable-numpy-{np.__version__}", "as-written", settings.threads),
        )

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        with translate_errors("the function"):
            outputs = self._function(read_only(inputs))
            if not isinstance(outputs, Mapping):
                raise RequestRefused(
                    f"the function returned {type(outputs).__name__}: expected a dict of arrays"
                )
            # A copy: the function may reuse its arrays, or return a view of its inputs.
            return {str(name): np.array(array) for name, array in outputs.items()}


def read_only(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return read-only views for a user's function, because a request may run again on them."""
    views = {name: array.view() for name, array in inputs.items()}
    for view in views.values():
        view.flags.writeable = False
    return views


KIND = BackendKind(
    name="callable",
    factory_types="a function on dicts of numpy arrays",
    recognises=callable,
    open_object=NumpyFunction,
)

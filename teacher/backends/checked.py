"""Holds every answer of a model against what the model declares: what differs is no label."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ...errors import BadAnswer, WireError
from ...proto.arena import Array
from ...proto.datatypes import datatype_of
from ..model import TensorSpec
from . import Backend, Finish, Submit, queue_of


class Checked:
    """A backend that answers with the outputs of its spec, or not at all.

    Files are mostly as they say; a function of the user's may answer otherwise for other values.

    Args:
        backend: the model.
        by_option: whether its outputs are those of `--output`, and not what it says itself.
    """

    def __init__(self, backend: Backend, *, by_option: bool = False) -> None:
        self._backend = backend
        self._by_option = by_option
        self.spec = backend.spec
        queue = queue_of(backend)
        self.submit = None if queue is None else partial(self._submit, queue)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """As `Backend.run`, the declared outputs alone; raises BadAnswer for what is none."""
        return self._checked(self._backend.run(inputs))

    def _submit(self, queue: Submit, inputs: Mapping[str, Array]) -> Finish:
        """The same for a backend that has a queue."""
        finish = queue(inputs)

        def checked() -> tuple[dict[str, Array], float]:
            outputs, device_s = finish()
            return self._checked(outputs), device_s

        return checked

    def _checked(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        return {tensor.name: self._held(tensor, outputs) for tensor in self.spec.outputs}

    def _held(self, tensor: TensorSpec, outputs: Mapping[str, Array]) -> Array:
        array = outputs.get(tensor.name)
        if array is None:
            declared = (
                f"an output {tensor.name!r} was declared by --output and the model"
                if self._by_option
                else f"the model declares an output {tensor.name!r} and"
            )
            given = ", ".join(map(repr, outputs)) or "none"
            raise BadAnswer(f"{declared} does not give it: it gives {given}", tensor.name)
        return _fitting(array, tensor)


def _fitting(array: Array, tensor: TensorSpec) -> Array:
    if not fits(array, tensor):
        raise BadAnswer(
            f"output {tensor.name!r} is {array.dtype} {list(array.shape)}, "
            f"but the model declares {tensor.datatype} {list(tensor.shape)}",
            tensor.name,
        )
    return array


def fits(array: Array, tensor: TensorSpec) -> bool:
    """Whether `array` is one of those that `tensor` describes."""
    try:
        return datatype_of(array.dtype) == tensor.datatype and tensor.admits(array.shape)
    except WireError:  # of a dtype that nothing describes
        return False

"""Whether a batch is one that a model says it takes: for servers that do not look themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...errors import WireError
from ..datatypes import dtype_of
from ..specs import TensorSpec
from ..stacked import Input


def misfit(declared: Sequence[TensorSpec], inputs: Mapping[str, Input]) -> str:
    """In words, how a batch differs from what a server says its model takes.

    KServe and MLServer hand any tensor to the model, and call what it raises a failure of their
    own, as if another try could go well.

    Args:
        declared: inputs of the model; empty where the server does not say.
        inputs: the batch.

    Returns:
        the first difference; empty where there is none. Of the shape of an input whose number of
        dimensions is another than declared nothing is said: some servers leave out the batch's. Of
        an input whose declared datatype does not exist nothing is said at all.
    """
    for spec in declared:
        array = inputs.get(spec.name)
        if array is None:
            return f"the model takes an input {spec.name!r}, the batch has {list(inputs)}"
        try:
            wanted = dtype_of(spec.datatype)
        except WireError:
            continue
        if array.dtype.newbyteorder("=") != wanted:
            return f"input {spec.name!r} is declared as {wanted}, the batch has {array.dtype}"
        if array.ndim == len(spec.shape) and not spec.admits(array.shape):
            shape = list(array.shape)
            return f"input {spec.name!r} is declared as {list(spec.shape)}, the batch has {shape}"
    return ""

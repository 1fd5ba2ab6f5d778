"""A tensor whose elements a peer sent one by one, in `InferTensorContents`.

We always send raw bytes; small clients written by hand, and JSON gateways, send this form.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import WireError
from . import inference_pb2 as pb
from .datatypes import Array, dtype_of, element_count, object_array

#: Where the elements of a datatype are, as the specification says; FP16 and BF16 have no place.
_FIELDS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def from_contents(contents: pb.InferTensorContents, datatype: str, shape: Sequence[int]) -> Array:
    """The array in `contents`, read-only.

    Raises:
        WireError: unknown datatype or impossible shape, elements in a field of another datatype,
            too few or too many of them, or one that the datatype cannot hold.
    """
    dtype = dtype_of(datatype)
    count = element_count(shape, dtype.itemsize)
    field = _FIELDS.get(datatype)
    used = [descriptor.name for descriptor, _ in contents.ListFields()]
    if used not in ([], [field]):
        raise WireError(f"elements of {datatype} belong in {field or 'raw bytes'}, not in {used}")
    elements = getattr(contents, field) if used and field else ()
    if len(elements) != count:
        raise WireError(
            f"{datatype} of shape {list(shape)} needs {count} elements, {len(elements)} are given"
        )
    if datatype == "BYTES":
        return object_array(list(elements), shape)
    if dtype.kind in "iu" and dtype.itemsize < 4:  # these travel in 32 bits
        wide = np.fromiter(elements, dtype=np.int64, count=count)
        limits = np.iinfo(dtype)
        if wide.min(initial=0) < limits.min or wide.max(initial=0) > limits.max:
            raise WireError(f"an element of {datatype} is not within {limits.min}..{limits.max}")
        array = wide.astype(dtype).reshape(tuple(shape))
    else:
        array = np.fromiter(elements, dtype=dtype, count=count).reshape(tuple(shape))
    array.flags.writeable = False
    return array

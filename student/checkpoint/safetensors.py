"""Files in the format of safetensors, written and read in pieces: no second copy in memory.

Eight bytes of the header's length, the header (JSON: dtype, shape and place of each array), the
arrays one after the other. Any library of that name reads them. Its own for numpy makes the whole
file in memory first, which a supervisor of a large model has no room for.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

import numpy as np

from ...errors import CheckpointDamaged
from ...proto.arena import dtype_named
from .contents import DTYPES, Array

SUFFIX: Final = ".safetensors"
_LENGTH: Final = struct.Struct("<Q")
_NAMES: Final = {tag: name for name, tag in DTYPES.items()}
#: What the format allows, so that a damaged length takes no memory.
_MOST_HEADER_BYTES: Final = 100_000_000


class Readable(Protocol):
    """What is asked of a file."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill `buffer` from its beginning; how many bytes."""


def pieces(arrays: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    """The bytes of a file that holds `arrays`; arrays that lie in one run are not copied."""
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))  # keeps alignment
    header: dict[str, Any] = {}
    offset = 0
    for name in order:
        array = arrays[name]
        end = offset + array.nbytes
        header[name] = {
            "dtype": DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield _LENGTH.pack(len(text)) + text
    for name in order:
        if arrays[name].nbytes:
            flat = np.ascontiguousarray(arrays[name]).reshape(-1)
            yield flat.view(np.uint8).data


def read(file: Readable, nbytes: int) -> dict[str, Array]:
    """The arrays of a file of `nbytes`, each read into memory of its own.

    Raises:
        CheckpointDamaged: it is no such file, or shorter than it says.
    """
    try:
        (length,) = _LENGTH.unpack(_exactly(file, _LENGTH.size))
        if length > min(_MOST_HEADER_BYTES, nbytes):
            raise ValueError(f"a header of {length} bytes")
        header = json.loads(_exactly(file, length))
        header.pop("__metadata__", None)
        return dict(_arrays(file, header, nbytes - length - _LENGTH.size))
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise CheckpointDamaged(f"it is no file of safetensors ({error})") from error


def _arrays(
    file: Readable, header: Mapping[str, Any], data_bytes: int
) -> Iterator[tuple[str, Array]]:
    at = 0
    for name, told in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape = dtype_named(_NAMES[told["dtype"]]), tuple(map(int, told["shape"]))
        begin, end = told["data_offsets"]
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if begin != at or end - begin != nbytes or end > data_bytes:
            raise ValueError(f"{name} is said to lie at {begin}..{end}")
        array = np.empty(nbytes, np.uint8)
        _fill(file, array.data)
        yield name, array.view(dtype).reshape(shape)
        at = end


def _exactly(file: Readable, nbytes: int) -> bytes:
    data = bytearray(nbytes)
    _fill(file, memoryview(data))
    return bytes(data)


def _fill(file: Readable, memory: memoryview) -> None:
    while memory.nbytes:
        count = file.readinto(memory)
        if not count:
            raise ValueError(f"it ends {memory.nbytes} bytes too soon")
        memory = memory[count:]

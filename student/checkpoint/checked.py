"""Files of a checkpoint, written with their checksums and read against them.

Arrays are in the format of safetensors, written and read in pieces: no second copy in memory. Eight
bytes of the header's length, the header (JSON: dtype, shape and place of each array), the arrays
one after the other. Any library of that name reads them. Its own for numpy makes the whole file in
memory first, which a supervisor of a large model has no room for.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
import time
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Final, Protocol

import numpy as np

from ...proto.arena import dtype_named
from ...runtime.errors import CheckpointDamaged, UsageError
from .checkpoint import Manifest, Provenance
from .contents import DTYPES, Array, Contents
from .files import PIECE_BYTES, Draft, Files, Written

STATE: Final = "state.json"


def write(draft: Draft, contents: Contents, provenance: Provenance, after: str = "") -> Manifest:
    """Write all files of a checkpoint; the manifest, which they make, is left to `commit`.

    Args:
        draft: where they are written.
        contents: what they hold.
        provenance: of the manifest, as `after` is.
        after: see `Manifest`.

    Raises:
        CheckpointUnavailable: no room, or a place that refuses.
        UsageError: the state is not JSON.
    """
    try:
        state = json.dumps(contents.state).encode()
    except (TypeError, ValueError) as error:
        raise UsageError(f"the state of a checkpoint holds JSON values: {error}") from error
    files = {
        f"{group}{SUFFIX}": draft.write(f"{group}{SUFFIX}", array_pieces(contents.group(group)))
        for group in contents.groups()
    }
    files[STATE] = draft.write(STATE, [state])
    return Manifest(contents.step, contents.world, time.time(), files, provenance, after)


def read(files: Files, name: str, manifest: Manifest) -> Contents:
    """All that a checkpoint holds, verified on the way.

    Raises:
        CheckpointDamaged: a file is missing, of another length, or fails its checksum.
        CheckpointUnavailable: the place cannot be read now.
    """
    tensors: dict[str, Array] = {}
    state = b""
    for file, told in manifest.files.items():
        with _opened(files, name, file, told) as reader:
            if file == STATE:
                state = reader.read(told.nbytes)
                continue
            group = file.removesuffix(SUFFIX)
            for array_name, array in read_arrays(reader, told.nbytes).items():
                tensors[f"{group}/{array_name}"] = array
    if not state:
        raise CheckpointDamaged(f"{STATE} is missing")
    return Contents(manifest.step, manifest.world, tensors, json.loads(state))


def verify(files: Files, name: str, manifest: Manifest) -> None:
    """Read all files and hold them against their checksums; raises what `read` does."""
    for file, told in manifest.files.items():
        with _opened(files, name, file, told):
            pass  # what nobody reads is read at the end


class _Reader:
    """A file that is read once, from its beginning, and whose bytes are added to a checksum."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.nbytes = 0

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._digest.update(data)
        self.nbytes += len(data)
        return data

    def readinto(self, buffer: memoryview) -> int:
        """As of files, at most `PIECE_BYTES` at a time: the checksum is to find them in caches."""
        buffer = buffer[:PIECE_BYTES]
        readinto: Any = getattr(self._file, "readinto", None)
        if readinto is None:  # not every file of fsspec has it
            data = self._file.read(len(buffer))
            count = len(data)
            buffer[:count] = data
        else:
            count = readinto(buffer) or 0
        self._digest.update(buffer[:count])
        self.nbytes += count
        return count

    def check(self, told: Written) -> None:
        """Read the rest. Raises CheckpointDamaged where the whole is not what was written."""
        while self.read(PIECE_BYTES):
            pass
        if self.nbytes != told.nbytes:
            raise CheckpointDamaged(f"it has {self.nbytes} bytes, not {told.nbytes}")
        if self._digest.hexdigest() != told.sha256:
            raise CheckpointDamaged("it fails its checksum")


@contextlib.contextmanager
def _opened(files: Files, name: str, file: str, told: Written) -> Iterator[_Reader]:
    try:
        with files.reading(name, file) as opened:
            reader = _Reader(opened)
            yield reader
            reader.check(told)
    except FileNotFoundError as error:
        raise CheckpointDamaged(f"{file}: it is missing") from error
    except CheckpointDamaged as error:
        raise CheckpointDamaged(f"{file}: {error}") from error


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


def array_pieces(arrays: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
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


def read_arrays(file: Readable, nbytes: int) -> dict[str, Array]:
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

"""Writing and reading of a checkpoint's files, with checksums.

Arrays are in the format of safetensors: 8 bytes with the length of the header, the header (JSON:
dtype, shape and offsets of each array), then the arrays. Any library for safetensors can read them.
They are written and read in pieces, without a second copy in memory. The library's own functions
for numpy build the whole file in memory first, which would double the memory for a large model.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Final, Protocol

import numpy as np

from ...proto.arena import dtype_named
from ...runtime.errors import CheckpointDamaged, UsageError
from .checkpoint import Checkpoint
from .contents import DTYPES, Array, Contents
from .storage import PIECE_BYTES, Draft, FileDigest, Storage

STATE: Final = "state.json"


def write(draft: Draft, contents: Contents) -> dict[str, FileDigest]:
    """Write all files of a checkpoint but the manifest; return length and checksum of each.

    Raises:
        CheckpointUnavailable: there is no space, or the place cannot be written.
        UsageError: the state is not JSON.
    """
    try:
        state = json.dumps(contents.state).encode()
    except (TypeError, ValueError) as error:
        raise UsageError(f"the state of a checkpoint must be JSON values: {error}") from error
    files = {
        f"{group}{SUFFIX}": draft.write(f"{group}{SUFFIX}", array_pieces(contents.group(group)))
        for group in contents.groups()
    }
    files[STATE] = draft.write(STATE, [state])
    return files


def read(storage: Storage, checkpoint: Checkpoint) -> Contents:
    """Read a checkpoint, and verify it.

    Raises:
        CheckpointDamaged: a file is missing, of another length, or fails its checksum.
        CheckpointUnavailable: the place cannot be read now.
    """
    _require_state(checkpoint)
    tensors: dict[str, Array] = {}
    state = b""
    for file, recorded in checkpoint.files.items():
        with _opened(storage, checkpoint.name, file, recorded) as reader:
            if file == STATE:
                state = reader.read(recorded.nbytes)
                continue
            group = file.removesuffix(SUFFIX)
            for array_name, array in read_arrays(reader, recorded.nbytes).items():
                tensors[f"{group}/{array_name}"] = array
    return Contents(checkpoint.step, checkpoint.world, tensors, json.loads(state))


def verify(storage: Storage, checkpoint: Checkpoint) -> None:
    """Read all files and compare them with their checksums; raises as `read` does."""
    _require_state(checkpoint)
    for file, recorded in checkpoint.files.items():
        with _opened(storage, checkpoint.name, file, recorded):
            pass  # the file is read at the end of the context


def _require_state(checkpoint: Checkpoint) -> None:
    recorded = checkpoint.files.get(STATE)
    if recorded is None or not recorded.nbytes:
        raise CheckpointDamaged(f"{STATE} is missing")


class _Reader:
    """Reads a file once, from its beginning, and computes a checksum."""

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
        """Read at most `PIECE_BYTES`: the checksum then finds the bytes still in CPU caches."""
        buffer = buffer[:PIECE_BYTES]
        readinto: Any = getattr(self._file, "readinto", None)
        if readinto is None:  # some files of fsspec do not have it
            data = self._file.read(len(buffer))
            count = len(data)
            buffer[:count] = data
        else:
            count = readinto(buffer) or 0
        self._digest.update(buffer[:count])
        self.nbytes += count
        return count

    def check(self, recorded: FileDigest) -> None:
        """Read the rest. Raises CheckpointDamaged if length or checksum of the file differ."""
        while self.read(PIECE_BYTES):
            pass
        if self.nbytes != recorded.nbytes:
            raise CheckpointDamaged(f"it has {self.nbytes} bytes, not {recorded.nbytes}")
        if self._digest.hexdigest() != recorded.sha256:
            raise CheckpointDamaged("it fails its checksum")


@contextlib.contextmanager
def _opened(storage: Storage, name: str, file: str, recorded: FileDigest) -> Iterator[_Reader]:
    try:
        with storage.reading(name, file) as opened:
            reader = _Reader(opened)
            yield reader
            reader.check(recorded)
    except FileNotFoundError as error:
        raise CheckpointDamaged(f"{file}: it is missing") from error
    except CheckpointDamaged as error:
        raise CheckpointDamaged(f"{file}: {error}") from error


SUFFIX: Final = ".safetensors"
_LENGTH: Final = struct.Struct("<Q")
_DTYPE_OF: Final = {tag: name for name, tag in DTYPES.items()}
#: Limit of a header in this format. So a damaged length cannot make `read_arrays` allocate more.
_MOST_HEADER_BYTES: Final = 100_000_000


class Readable(Protocol):
    """A file that can be read into a buffer."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Read into `buffer`; return the number of bytes."""


def array_pieces(arrays: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a file with `arrays`; contiguous arrays are not copied."""
    # Large items first, so that each array is aligned.
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
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
    """Return the arrays of a file of `nbytes`, each in memory of its own.

    Raises:
        CheckpointDamaged: the file is not in this format, or too short.
    """
    try:
        (length,) = _LENGTH.unpack(_read_exactly(file, _LENGTH.size))
        if length > min(_MOST_HEADER_BYTES, nbytes):
            raise ValueError(f"its header has {length} bytes")
        header = json.loads(_read_exactly(file, length))
        header.pop("__metadata__", None)
        return dict(_arrays(file, header, nbytes - length - _LENGTH.size))
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise CheckpointDamaged(f"it is not a safetensors file ({error})") from error


def _arrays(
    file: Readable, header: Mapping[str, Any], data_bytes: int
) -> Iterator[tuple[str, Array]]:
    next_begin = 0
    for name, recorded in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape = dtype_named(_DTYPE_OF[recorded["dtype"]]), tuple(map(int, recorded["shape"]))
        begin, end = recorded["data_offsets"]
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if begin != next_begin or end - begin != nbytes or end > data_bytes:
            raise ValueError(f"its header has invalid offsets of {name}: {begin} to {end}")
        array = np.empty(nbytes, np.uint8)
        _fill(file, array.data)
        yield name, array.view(dtype).reshape(shape)
        next_begin = end


def _read_exactly(file: Readable, nbytes: int) -> bytes:
    data = bytearray(nbytes)
    _fill(file, memoryview(data))
    return bytes(data)


def _fill(file: Readable, memory: memoryview) -> None:
    while memory.nbytes:
        count = file.readinto(memory)
        if not count:
            raise ValueError(f"it ends {memory.nbytes} bytes too soon")
        memory = memory[count:]

"""Files of a checkpoint, written with their checksums and read against them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

from ...errors import CheckpointDamaged, UsageError
from . import safetensors
from .checkpoint import Manifest, Provenance
from .contents import Array, Contents
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
        f"{group}{safetensors.SUFFIX}": draft.write(
            f"{group}{safetensors.SUFFIX}", safetensors.pieces(contents.group(group))
        )
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
            group = file.removesuffix(safetensors.SUFFIX)
            for array_name, array in safetensors.read(reader, told.nbytes).items():
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

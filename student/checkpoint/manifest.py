"""The manifest: which files a checkpoint has, of how many bytes, with which checksum.

It is the last file that is written. A folder without a whole one is no checkpoint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from ...errors import CheckpointDamaged

MANIFEST: Final = "MANIFEST.json"
FORMAT: Final = "edl-checkpoint-1"


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written: its length and the SHA-256 of its bytes, in hexadecimal."""

    nbytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """See the module.

    Attributes:
        step: steps of the optimizer that were done.
        world: ranks that trained.
        made_s: when it was written, seconds since the epoch.
        files: by name.
    """

    step: int
    world: int
    made_s: float
    files: Mapping[str, Written]

    @property
    def nbytes(self) -> int:
        """Bytes of all files, without the manifest."""
        return sum(file.nbytes for file in self.files.values())

    def pack(self) -> bytes:
        """Its file: JSON with a checksum of itself."""
        told = self._told()
        return (json.dumps({**told, "sha256": _digest(told)}, indent=2) + "\n").encode()

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """The manifest of a file. Raises CheckpointDamaged where it is not whole."""
        try:
            told = json.loads(data)
            digest = told.pop("sha256")
            files = {
                name: Written(int(file["bytes"]), str(file["sha256"]))
                for name, file in told["files"].items()
            }
            manifest = cls(int(told["step"]), int(told["world"]), float(told["made_s"]), files)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointDamaged(f"{MANIFEST} is not whole ({error!r})") from error
        if digest != _digest(told):
            raise CheckpointDamaged(f"{MANIFEST} fails its own checksum")
        if told.get("format") != FORMAT:
            raise CheckpointDamaged(
                f"{MANIFEST} is of format {told.get('format')!r}, this version reads {FORMAT!r}"
            )
        if any("/" in name for name in files):  # it may come from anywhere: nothing else is read
            raise CheckpointDamaged(f"{MANIFEST} names files beside its folder")
        return manifest

    def _told(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "step": self.step,
            "world": self.world,
            "made_s": self.made_s,
            "files": {
                name: {"bytes": file.nbytes, "sha256": file.sha256}
                for name, file in sorted(self.files.items())
            },
        }


def _digest(told: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

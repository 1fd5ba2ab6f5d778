"""The manifest: which files a checkpoint has, of how many bytes, with which checksum.

It is the last file that is written. A folder without a whole one is no checkpoint. Checkpoints of
elastic trainings get one more file when they join the training's history.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from ...errors import CheckpointDamaged
from ...scheduler.students.world import Fingerprint, since_checkpoint

MANIFEST: Final = "MANIFEST.json"
#: Says that a checkpoint has joined the history, and where.
JOINED: Final = "JOINED.json"
FORMAT: Final = "edl-checkpoint-1"


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written: its length and the SHA-256 of its bytes, in hexadecimal."""

    nbytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Provenance:
    """With which settings a checkpoint was trained.

    Attributes:
        fingerprint: of the job (`scheduler/students/world.py`); empty: not known.
        accepted: changes of the fingerprint that users allowed, the oldest first: "step", "field",
            "before" and "after".
    """

    fingerprint: Fingerprint = field(default_factory=dict)
    accepted: tuple[Mapping[str, Any], ...] = ()

    def continued(self, step: int, own: Fingerprint) -> Provenance:
        """Of a training with the fingerprint `own` that goes on from this one's checkpoint."""
        changes = since_checkpoint(self.fingerprint, own)
        return Provenance(own, (*self.accepted, *(change.to_json(step) for change in changes)))


@dataclass(frozen=True, slots=True)
class Manifest:
    """See the module.

    Attributes:
        step: steps of the optimizer that were done.
        world: ranks that trained.
        made_s: when it was written, seconds since the epoch.
        files: by name.
        provenance: with which settings it was trained.
        after: name of the checkpoint in the history that it continues; empty: it is the first.
    """

    step: int
    world: int
    made_s: float
    files: Mapping[str, Written]
    provenance: Provenance = field(default_factory=Provenance)
    after: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of all files, without the manifest."""
        return sum(file.nbytes for file in self.files.values())

    def pack(self) -> bytes:
        """Its file: JSON with a checksum of itself."""
        return _sealed(self._told())

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """The manifest of a file. Raises CheckpointDamaged where it is not whole."""
        told = _unsealed(data, MANIFEST)
        try:
            files = {
                name: Written(int(file["bytes"]), str(file["sha256"]))
                for name, file in told["files"].items()
            }
            # Checkpoints of older versions have no fingerprint.
            provenance = Provenance(
                dict(told.get("fingerprint", {})),
                tuple(dict(change) for change in told.get("accepted", ())),
            )
            manifest = cls(
                int(told["step"]),
                int(told["world"]),
                float(told["made_s"]),
                files,
                provenance,
                str(told.get("after", "")),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointDamaged(f"{MANIFEST} is not whole ({error!r})") from error
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
            "fingerprint": dict(self.provenance.fingerprint),
            "accepted": [dict(change) for change in self.provenance.accepted],
            "after": self.after,
        }


@dataclass(frozen=True, slots=True)
class Joined:
    """The file that says that a checkpoint has joined the history.

    Attributes:
        sequence: its place there, from 1.
        digest: SHA-256 of its manifest, in hexadecimal.
    """

    sequence: int
    digest: str

    def pack(self) -> bytes:
        """Its file: JSON with a checksum of itself."""
        return _sealed({"sequence": self.sequence, "manifest": self.digest})

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """What a file says. Raises CheckpointDamaged where it is not whole."""
        told = _unsealed(data, JOINED)
        try:
            return cls(int(told["sequence"]), str(told["manifest"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointDamaged(f"{JOINED} is not whole ({error!r})") from error


def digest_of(manifest: bytes) -> str:
    """SHA-256 of a manifest's file, in hexadecimal."""
    return hashlib.sha256(manifest).hexdigest()


def _sealed(told: Mapping[str, Any]) -> bytes:
    return (json.dumps({**told, "sha256": _digest(told)}, indent=2) + "\n").encode()


def _unsealed(data: bytes, file: str) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(data)
        digest = told.pop("sha256")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointDamaged(f"{file} is not whole ({error!r})") from error
    if digest != _digest(told):
        raise CheckpointDamaged(f"{file} fails its own checksum")
    return told


def _digest(told: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

"""One checkpoint, as its folder describes it: manifest, position in the history, lengths of files.

The manifest has the name, length and checksum of each file. It is written last; a folder without a
manifest is no checkpoint. Checkpoints of elastic trainings get one more file when they join the
training's history.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from ...runtime.errors import CheckpointDamaged
from ...scheduler.students.fingerprint import Fingerprint, since_checkpoint
from ...scheduler.students.saving import CheckpointEntry
from .files import FileDigest, Files, generation_of, step_of

MANIFEST: Final = "MANIFEST.json"
#: File with the position of a checkpoint in the history.
JOINED: Final = "JOINED.json"
FORMAT: Final = "edl-checkpoint-1"


@dataclass(frozen=True, slots=True)
class Provenance:
    """The settings with which a checkpoint was trained.

    Attributes:
        fingerprint: fingerprint of the job (`scheduler/students/fingerprint.py`); empty: unknown.
        accepted: changes of the fingerprint that users allowed, the oldest first: "step", "field",
            "before" and "after".
    """

    fingerprint: Fingerprint = field(default_factory=dict)
    accepted: tuple[Mapping[str, Any], ...] = ()

    def continued(self, step: int, own: Fingerprint) -> Provenance:
        """Return the provenance of a training that continues from this checkpoint at `step`.

        `own` is its fingerprint.
        """
        changes = since_checkpoint(self.fingerprint, own)
        return Provenance(own, (*self.accepted, *(change.to_json(step) for change in changes)))


@dataclass(frozen=True, slots=True)
class Manifest:
    """See the module.

    Attributes:
        step: optimizer steps taken.
        world: number of ranks.
        made_s: when it was written, in seconds since 1970.
        files: length and checksum of each file, by name.
        provenance: settings with which it was trained.
        after: name of the checkpoint in the history that it continues; empty: it is the first.
    """

    step: int
    world: int
    made_s: float
    files: Mapping[str, FileDigest]
    provenance: Provenance = field(default_factory=Provenance)
    after: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of all files, without the manifest."""
        return sum(file.nbytes for file in self.files.values())

    def pack(self) -> bytes:
        """Return the bytes of its file: JSON with a checksum of itself."""
        return _sealed(self._fields())

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Parse `pack`. Raises CheckpointDamaged if it is invalid."""
        values = _unsealed(data, MANIFEST)
        try:
            files = {
                name: FileDigest(int(file["bytes"]), str(file["sha256"]))
                for name, file in values["files"].items()
            }
            # Checkpoints of older versions have no fingerprint.
            provenance = Provenance(
                dict(values.get("fingerprint", {})),
                tuple(dict(change) for change in values.get("accepted", ())),
            )
            manifest = cls(
                int(values["step"]),
                int(values["world"]),
                float(values["made_s"]),
                files,
                provenance,
                str(values.get("after", "")),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointDamaged(f"{MANIFEST} is not whole ({error!r})") from error
        if values.get("format") != FORMAT:
            raise CheckpointDamaged(
                f"{MANIFEST} is of format {values.get('format')!r}, this version reads {FORMAT!r}"
            )
        if any("/" in name for name in files):  # it is not trusted: read only files in its folder
            raise CheckpointDamaged(f"{MANIFEST} names files beside its folder")
        return manifest

    def _fields(self) -> dict[str, Any]:
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
class HistoryRecord:
    """Contents of the file that records that a checkpoint has joined the history.

    Attributes:
        sequence: position of the checkpoint in the history, from 1.
        digest: SHA-256 of its manifest, in hexadecimal.
    """

    sequence: int
    digest: str

    def pack(self) -> bytes:
        """Return the bytes of its file: JSON with a checksum of itself."""
        return _sealed({"sequence": self.sequence, "manifest": self.digest})

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Parse `pack`. Raises CheckpointDamaged if it is invalid."""
        values = _unsealed(data, JOINED)
        try:
            return cls(int(values["sequence"]), str(values["manifest"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointDamaged(f"{JOINED} is not whole ({error!r})") from error


def digest_of(manifest: bytes) -> str:
    """Return the SHA-256 of a manifest's file, in hexadecimal."""
    return hashlib.sha256(manifest).hexdigest()


def _sealed(values: Mapping[str, Any]) -> bytes:
    return (json.dumps({**values, "sha256": _digest(values)}, indent=2) + "\n").encode()


def _unsealed(data: bytes, file: str) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(data)
        digest = values.pop("sha256")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointDamaged(f"{file} is not whole ({error!r})") from error
    if digest != _digest(values):
        raise CheckpointDamaged(f"{file} fails its own checksum")
    return values


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in a repository.

    Attributes:
        name: name of its folder.
        location: its path or URL, for `open_checkpoint` on any host with access to it.
        step: optimizer steps taken.
        world: number of ranks; 0 if its manifest is damaged.
        made_s: when it was written, in seconds since 1970; 0 if its manifest is damaged.
        nbytes: bytes of its arrays and state; 0 if its manifest is damaged.
        problem: known damage as text; empty: none.
        provenance: settings with which it was trained.
        digest: SHA-256 of its manifest, in hexadecimal.
        after: name of the checkpoint that it continues; empty: it is the first, or unknown.
        sequence: position in the history, from 1; 0: it has none.
    """

    name: str
    location: str
    step: int
    world: int = 0
    made_s: float = 0.0
    nbytes: int = 0
    problem: str = ""
    provenance: Provenance = field(default_factory=Provenance)
    digest: str = ""
    after: str = ""
    sequence: int = 0

    @property
    def generation(self) -> int:
        """Generation that saved it; 0: a program without generations."""
        return generation_of(self.name) or 0

    @property
    def eligible(self) -> bool:
        """Whether a training may continue from it: it needs no history, or has joined it."""
        return self.sequence > 0 or generation_of(self.name) is None

    @property
    def valid(self) -> bool:
        """Whether it is eligible and has no known damage."""
        return self.eligible and not self.problem

    @property
    def entry(self) -> CheckpointEntry:
        """Entry of the history."""
        return CheckpointEntry(self.name, self.step, self.digest, self.sequence, self.generation)


def checkpoint_from(
    files: Files, name: str, manifest: Manifest, digest: str, sequence: int = 0, problem: str = ""
) -> Checkpoint:
    """Return the checkpoint in the folder `name` with this manifest; `digest`: of the manifest."""
    return Checkpoint(
        name,
        files.location(name),
        manifest.step,
        manifest.world,
        manifest.made_s,
        manifest.nbytes,
        problem,
        manifest.provenance,
        digest,
        manifest.after,
        sequence,
    )


def inspect(files: Files, name: str, problem: str = "") -> Checkpoint | None:
    """Return the checkpoint in a folder without reading its contents; None if there is none.

    Args:
        files: storage of the checkpoints.
        name: name of the checkpoint's folder.
        problem: known damage as text; empty: none.

    Raises:
        CheckpointUnavailable: the place cannot be read now.
    """
    try:
        manifest, digest, sequence = read_manifest(files, name)
    except CheckpointDamaged as error:
        step = step_of(name)
        assert step is not None  # `Files.names` returns only such names
        sequence = 0
        with contextlib.suppress(CheckpointDamaged):
            sequence = joined.sequence if (joined := _joined(files, name)) else 0
        return Checkpoint(name, files.location(name), step, problem=str(error), sequence=sequence)
    except FileNotFoundError:
        return None
    for file, written in manifest.files.items():
        nbytes = files.size(name, file)
        if nbytes is None:
            problem = problem or f"{file} is missing"
        elif nbytes != written.nbytes:
            problem = problem or f"{file} has {nbytes} bytes, not {written.nbytes}"
    if problem and files.size(name, MANIFEST) is None:
        return None  # another process has pruned it meanwhile
    return checkpoint_from(files, name, manifest, digest, sequence, problem)


def read_manifest(files: Files, name: str) -> tuple[Manifest, str, int]:
    """Return the manifest, its digest, and the position in the history; 0: it has none.

    Raises:
        FileNotFoundError: there is no manifest.
        CheckpointDamaged: manifest or position are invalid, or do not fit together.
        CheckpointUnavailable: the place cannot be read now.
    """
    with files.reading(name, MANIFEST) as file:
        packed = file.read()
    manifest, digest = Manifest.unpack(packed), digest_of(packed)
    if manifest.step != step_of(name):
        raise CheckpointDamaged(f"{MANIFEST} is of step {manifest.step}")
    if generation_of(name) is None or (joined := _joined(files, name)) is None:
        return manifest, digest, 0
    if joined.digest != digest:
        raise CheckpointDamaged(f"{JOINED} is of another {MANIFEST}")
    return manifest, digest, joined.sequence


def _joined(files: Files, name: str) -> HistoryRecord | None:
    """Return a checkpoint's position in the history, from its folder; None: it has none.

    Raises:
        CheckpointDamaged: the file is invalid.
    """
    try:
        with files.reading(name, JOINED) as file:
            return HistoryRecord.unpack(file.read())
    except FileNotFoundError:
        return None

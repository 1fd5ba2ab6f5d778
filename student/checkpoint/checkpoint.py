"""One checkpoint, as its folder describes it: manifest, position in the history, lengths of files.

The manifest has the name, length and checksum of each file. It is written last; a folder without a
manifest is no checkpoint. A checkpoint of an elastic training gets one more file, `JOINED`, when it
joins the training's history.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from ...runtime.errors import CheckpointDamaged
from ...scheduler.students.fingerprint import Fingerprint, since_checkpoint
from ...scheduler.students.saving import CheckpointEntry
from .contents import Contents
from .storage import FileDigest, Storage, generation_of, step_of

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

        `own` is the fingerprint of that training.
        """
        changes = since_checkpoint(self.fingerprint, own)
        return Provenance(own, (*self.accepted, *(change.to_json(step) for change in changes)))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in a repository.

    If its manifest or `JOINED` is invalid, `world` and `made_s` are 0, and `files`, `provenance`,
    `after` and `digest` are empty.

    Attributes:
        name: name of its folder.
        location: its path or URL, for `open_checkpoint` on any host with access to it.
        step: optimizer steps taken.
        world: number of ranks.
        made_s: when it was written, in seconds since 1970.
        files: length and checksum of each file, by name.
        provenance: settings with which it was trained.
        after: name of the checkpoint that it continues; empty: it is the first, or unknown.
        digest: SHA-256 of its manifest, in hexadecimal.
        sequence: position in the history, from 1; 0: it has none.
        problem: known damage as text; empty: none.
    """

    name: str
    location: str
    step: int
    world: int = 0
    made_s: float = 0.0
    files: Mapping[str, FileDigest] = field(default_factory=dict)
    provenance: Provenance = field(default_factory=Provenance)
    after: str = ""
    digest: str = ""
    sequence: int = 0
    problem: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays and state."""
        return sum(file.nbytes for file in self.files.values())

    @property
    def generation(self) -> int:
        """Generation that saved it; 0: a program without generations saved it."""
        return generation_of(self.name) or 0

    @property
    def eligible(self) -> bool:
        """Whether a training may continue from it: it has joined the history, or needs none."""
        return self.sequence > 0 or generation_of(self.name) is None

    @property
    def valid(self) -> bool:
        """Whether it is eligible and has no known damage."""
        return self.eligible and not self.problem

    @property
    def entry(self) -> CheckpointEntry:
        """The checkpoint as an entry of the history."""
        return CheckpointEntry(self.name, self.step, self.digest, self.sequence, self.generation)

    @classmethod
    def unpack_manifest(cls, data: bytes, name: str, location: str) -> Self:
        """Parse what `pack_manifest` returned; raises CheckpointDamaged if it is invalid."""
        values = _unsealed(data, MANIFEST)
        try:
            checkpoint = cls(
                name=name,
                location=location,
                step=int(values["step"]),
                world=int(values["world"]),
                made_s=float(values["made_s"]),
                files={
                    file: FileDigest(int(written["bytes"]), str(written["sha256"]))
                    for file, written in values["files"].items()
                },
                provenance=Provenance(  # checkpoints of older versions have no fingerprint
                    dict(values.get("fingerprint", {})),
                    tuple(dict(change) for change in values.get("accepted", ())),
                ),
                after=str(values.get("after", "")),
                digest=hashlib.sha256(data).hexdigest(),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointDamaged(f"{MANIFEST} is invalid ({error!r})") from error
        if values.get("format") != FORMAT:
            raise CheckpointDamaged(
                f"{MANIFEST} is of format {values.get('format')!r}, this version reads {FORMAT!r}"
            )
        if any("/" in file for file in checkpoint.files):  # never read outside its folder
            raise CheckpointDamaged(f"{MANIFEST} names files outside its folder")
        return checkpoint


def pack_manifest(
    contents: Contents, files: Mapping[str, FileDigest], provenance: Provenance, after: str = ""
) -> bytes:
    """Return the bytes of a manifest dated now: JSON with a checksum of itself."""
    return _sealed(
        {
            "format": FORMAT,
            "step": contents.step,
            "world": contents.world,
            "made_s": time.time(),
            "files": {
                name: {"bytes": file.nbytes, "sha256": file.sha256}
                for name, file in sorted(files.items())
            },
            "fingerprint": dict(provenance.fingerprint),
            "accepted": [dict(change) for change in provenance.accepted],
            "after": after,
        }
    )


def joined_record(entry: CheckpointEntry) -> bytes:
    """Return the bytes of `JOINED`: JSON with a checksum of itself."""
    return _sealed({"sequence": entry.sequence, "manifest": entry.digest})


def _sealed(values: Mapping[str, Any]) -> bytes:
    return (json.dumps({**values, "sha256": _digest(values)}, indent=2) + "\n").encode()


def _unsealed(data: bytes, file: str) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(data)
        digest = values.pop("sha256")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointDamaged(f"{file} is invalid ({error!r})") from error
    if digest != _digest(values):
        raise CheckpointDamaged(f"{file} fails its own checksum")
    return values


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def inspect(storage: Storage, name: str, problem: str = "") -> Checkpoint | None:
    """Return the checkpoint in a folder without reading its contents; None if there is none.

    Args:
        storage: storage of the checkpoints.
        name: name of the checkpoint's folder.
        problem: known damage as text; empty: none.

    Raises:
        CheckpointUnavailable: the place cannot be read now.
    """
    try:
        checkpoint = read_manifest(storage, name)
    except CheckpointDamaged as error:
        step = step_of(name)
        assert step is not None  # `Storage.names` returns only such names
        sequence = 0
        with contextlib.suppress(CheckpointDamaged):
            sequence, _ = _joined(storage, name)
        return Checkpoint(name, storage.location(name), step, problem=str(error), sequence=sequence)
    except FileNotFoundError:
        return None
    for file, written in checkpoint.files.items():
        nbytes = storage.size(name, file)
        if nbytes is None:
            problem = problem or f"{file} is missing"
        elif nbytes != written.nbytes:
            problem = problem or f"{file} has {nbytes} bytes, not {written.nbytes}"
    if problem and storage.size(name, MANIFEST) is None:
        return None  # another process has pruned it meanwhile
    return replace(checkpoint, problem=problem)


def read_manifest(storage: Storage, name: str) -> Checkpoint:
    """Return the checkpoint in a folder, as its manifest and `JOINED` describe it.

    Raises:
        FileNotFoundError: there is no manifest.
        CheckpointDamaged: the manifest or `JOINED` is invalid, or they do not match.
        CheckpointUnavailable: the place cannot be read now.
    """
    with storage.reading(name, MANIFEST) as file:
        packed = file.read()
    checkpoint = Checkpoint.unpack_manifest(packed, name, storage.location(name))
    if checkpoint.step != step_of(name):
        raise CheckpointDamaged(f"{MANIFEST} is of step {checkpoint.step}")
    if generation_of(name) is None:
        return checkpoint
    sequence, digest = _joined(storage, name)
    if digest and digest != checkpoint.digest:
        raise CheckpointDamaged(f"{JOINED} is of another {MANIFEST}")
    return replace(checkpoint, sequence=sequence)


def _joined(storage: Storage, name: str) -> tuple[int, str]:
    """Return a checkpoint's position in the history and the digest of its manifest, from `JOINED`.

    The position is 0 if the checkpoint has not joined the history.

    Raises:
        CheckpointDamaged: the file is invalid.
    """
    try:
        with storage.reading(name, JOINED) as file:
            values = _unsealed(file.read(), JOINED)
        return int(values["sequence"]), str(values["manifest"])
    except FileNotFoundError:
        return 0, ""
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointDamaged(f"{JOINED} is invalid ({error!r})") from error

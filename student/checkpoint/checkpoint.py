"""One checkpoint, as its folder describes it: manifest, place in the history, lengths of files."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from ...errors import CheckpointDamaged
from ...scheduler.students.saving import CheckpointEntry
from .files import Files
from .manifest import JOINED, MANIFEST, Joined, Manifest, Provenance, digest_of
from .names import generation_of, step_of


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One that lies in a repository.

    Attributes:
        name: of its folder.
        location: its path or URL, which `open_checkpoint` takes on any host that reaches it.
        step: steps of the optimizer that were done.
        world: ranks that trained; 0 where its manifest is damaged.
        made_s: when it was written, seconds since the epoch; 0 as above.
        nbytes: of all its files; 0 as above.
        problem: what is wrong with it, as far as was looked; empty: nothing.
        provenance: with which settings it was trained.
        digest: SHA-256 of its manifest, in hexadecimal.
        after: name of the checkpoint that it continues; empty: it is the first, or not known.
        sequence: its place in the history; 0: it has none.
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
        """That saved it; 0: a program without generations."""
        return generation_of(self.name) or 0

    @property
    def counts(self) -> bool:
        """Whether a training may go on from it: it needs no history, or has joined it."""
        return self.sequence > 0 or generation_of(self.name) is None

    @property
    def valid(self) -> bool:
        """Whether it counts and is whole, as far as was looked."""
        return self.counts and not self.problem

    @property
    def entry(self) -> CheckpointEntry:
        """As the history knows it."""
        return CheckpointEntry(self.name, self.step, self.digest, self.sequence, self.generation)


def checkpoint_from(
    files: Files, name: str, manifest: Manifest, digest: str, sequence: int = 0, problem: str = ""
) -> Checkpoint:
    """The checkpoint in a folder with this manifest, of this digest."""
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
    """The checkpoint in a folder, its content unread; None: there is none.

    Args:
        files: the place.
        name: of the checkpoint's folder.
        problem: what is known to be wrong with it; empty: nothing.

    Raises:
        CheckpointUnavailable: the place cannot be read now.
    """
    try:
        manifest, digest, sequence = read_manifest(files, name)
    except CheckpointDamaged as error:
        step = step_of(name)
        assert step is not None  # `Files.names` has seen to it
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
        return None  # somebody has pruned it meanwhile
    return checkpoint_from(files, name, manifest, digest, sequence, problem)


def read_manifest(files: Files, name: str) -> tuple[Manifest, str, int]:
    """A checkpoint's manifest, its digest, and its place in the history; 0: it has none.

    Raises:
        FileNotFoundError: there is no manifest.
        CheckpointDamaged: what the folder says is not whole, or contradicts itself.
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


def _joined(files: Files, name: str) -> Joined | None:
    """A checkpoint's place in the history, as its folder has it; None: it has none.

    Raises:
        CheckpointDamaged: the file is not whole.
    """
    try:
        with files.reading(name, JOINED) as file:
            return Joined.unpack(file.read())
    except FileNotFoundError:
        return None

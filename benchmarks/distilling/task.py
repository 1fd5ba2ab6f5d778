"""`Task`: data, a teacher and a student, and how the student is trained; the same for every way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...mesh.demo.digits import Augmentation, BatchSource, DigitDataset
from ...mesh.demo.settings import DemoSettings

if TYPE_CHECKING:
    from paddle.nn import Layer

#: What all tasks have in common: the mesh and its buffer.
BASE = DemoSettings(teachers=3, micro_batch=32, upper_batches=144, lower_batches=48)


@dataclass(frozen=True, slots=True)
class Task:
    """Something to learn.

    Attributes:
        name: what the table calls it; also the name of its service.
        data: rows to train on and held out, of whatever kind.
        settings: of teacher and students; each student has labels for `labelled` rows only.
        vary: the augmentation, of teacher and students.
        teacher: makes the teacher's network.
        student: makes a student's network, much smaller.
        about: the data in words: where it is from, how many rows.
        serving: further arguments of `edl teacher serve`.
    """

    name: str
    data: DigitDataset
    settings: DemoSettings
    vary: Augmentation
    teacher: Callable[[], Layer]
    student: Callable[[], Layer]
    about: str
    serving: tuple[str, ...] = ()

    @property
    def batches(self) -> BatchSource:
        """The batches of all students, the same ones for each way of training."""
        return BatchSource(self.data, self.settings, self.vary)


def find(folder: Path, names: Sequence[str]) -> list[Path] | None:
    """The files of these names that lie together in one folder, at any depth; None: nowhere."""
    for first in sorted(folder.rglob(names[0])):
        found = [first.parent / name for name in names]
        if all(path.is_file() for path in found):
            return found
    return None

"""`Task`: data, teacher, student and training settings, the same for all ways of training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ...mesh.demo.digits import Augmentation, BatchSource, DigitDataset
from ...mesh.demo.settings import DemoSettings
from ...student.frameworks import FrameworkName

if TYPE_CHECKING:
    from paddle.nn import Layer

#: Settings that all tasks share: those of the mesh and the buffer.
BASE = DemoSettings(teachers=3, micro_batch=32, upper_batches=144, lower_batches=48)


@dataclass(frozen=True, slots=True)
class Task:
    """A learning task.

    Attributes:
        name: name in the table, and of the service.
        data: rows for training and held-out rows, images or other inputs.
        settings: settings of teacher and students; `settings.labelled` is the number of rows for
            which a student has hard labels.
        augmentation: changes the inputs of teacher and students at random.
        teacher: makes the teacher's network.
        student: makes a student's network, which is much smaller.
        torch_student: makes the same network in PyTorch; None: there is none.
        framework: framework of the students.
        about: description of the data: its source and sizes.
        serving: further arguments of `edl teacher serve`.
    """

    name: str
    data: DigitDataset
    settings: DemoSettings
    augmentation: Augmentation
    teacher: Callable[[], Layer]
    student: Callable[[], Any]
    about: str
    serving: tuple[str, ...] = ()
    torch_student: Callable[[], Any] | None = None
    framework: FrameworkName = "paddle"

    def in_torch(self) -> Self | None:
        """Return the task with students of PyTorch; None: it has none."""
        if self.torch_student is None:
            return None
        return replace(self, student=self.torch_student, framework="torch")

    @property
    def batches(self) -> BatchSource:
        """The batches of all students; equal for each way of training."""
        return BatchSource(self.data, self.settings, self.augmentation)


def find(folder: Path, names: Sequence[str]) -> list[Path] | None:
    """Find a folder at any depth that has all of these files; return their paths, or None."""
    for first in sorted(folder.rglob(names[0])):
        paths = [first.parent / name for name in names]
        if all(path.is_file() for path in paths):
            return paths
    return None

"""Settings of the demo; the defaults suit two cores and three minutes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """Settings of all modes.

    Attributes:
        size: rows and columns of an image.
        device: device of the student and of the teachers: "cpu" or "gpu:0".
        students: students per mode; each has its own weights, labelled digits and augmentation.
        steps: optimizer steps of each student.
        batch_size: digits per step, drawn with repetition from the labelled digits.
        labelled: digits with a hard label, balanced over the classes.
        shift_pixels: largest shift of the augmentation, in each direction.
        noise: standard deviation of the augmentation's noise; a pixel is 0 to 255.
        learning_rate: learning rate of Adam for the student.
        temperature: T of the distillation loss.
        alpha: weight of the hard loss.
        beta: weight of the soft loss.
        teacher_epochs: passes of the teacher over all training digits.
        teachers: teacher processes in the mesh.
        micro_batch: maximum number of digits per run of the teacher's model.
        upper_batches: ut, in batches.
        lower_batches: lt, in batches.
    """

    size: int = 32
    device: str = "cpu"
    students: int = 3
    steps: int = 120
    batch_size: int = 128
    labelled: int = 100
    shift_pixels: int = 4
    noise: float = 20.0
    learning_rate: float = 5e-3
    temperature: float = 4.0
    alpha: float = 0.3
    beta: float = 0.7
    teacher_epochs: int = 5
    teachers: int = 2
    micro_batch: int = 64
    upper_batches: int = 64
    lower_batches: int = 20

    @classmethod
    def quick(cls) -> Self:
        """Return settings for a demo of one minute; its accuracies mean little."""
        return cls(students=2, steps=40, teacher_epochs=4, upper_batches=24, lower_batches=8)

    @property
    def batches(self) -> int:
        """Number of batches of all students of a mode."""
        return self.students * self.steps

"""The demo's modes of training, and the check of the stream that students receive."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import InitVar, dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from ...student import DistillLoss, StepReport, Trainer, accuracy
from ...student.frameworks import FrameworkName, framework_named
from .digits import Batch, BatchSource, DigitDataset
from .models import Predictor, load_paddle, student_network
from .settings import DemoSettings


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """Summary of the batches that a training loop received.

    Attributes:
        batches: number of batches.
        samples: number of rows in all batches.
        duplicates: number of batches with a number that had arrived before.
        out_of_order: number of batches with a number that is not higher than the previous number.
        sha256: hash of image, label and soft label of all batches, in the order of arrival.
    """

    batches: int
    samples: int
    duplicates: int
    out_of_order: int
    sha256: str


class StreamCheck:
    """Counts and hashes the batches of a stream. Field 2 of each batch is its number."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._samples = 0
        self._digest = hashlib.sha256()

    def watch(self, batches: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        """Yield (image, label[, soft_label]) for each (image, label, number[, soft_label])."""
        for image, label, number, *soft in batches:
            fields = (image, label, *soft)
            self._numbers.append(int(number[0]))
            self._samples += len(image)
            for array in fields:
                self._digest.update(np.ascontiguousarray(array).data)
            yield fields

    @property
    def summary(self) -> StreamSummary:
        """Summary of the batches so far."""
        numbers = self._numbers
        return StreamSummary(
            batches=len(numbers),
            samples=self._samples,
            duplicates=len(numbers) - len(set(numbers)),
            out_of_order=sum(number <= before for before, number in pairwise(numbers)),
            sha256=self._digest.hexdigest(),
        )


Mode = Literal["n_training", "online", "online_all_cores", "edl_dist"]
TITLES: dict[Mode, str] = {
    "n_training": "N-training",
    "online": "Online",
    "online_all_cores": "Online (all)",
    "edl_dist": "EDL-Dist",
}

#: The weights of student s are initialized with seed FIRST_SEED + s.
FIRST_SEED = 1000

#: Called with the number of batches trained since `StudentTraining.run` began.
OnBatch = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class ModeResult:
    """Result of one mode.

    Attributes:
        mode: name of the mode.
        accuracy: accuracy on the test digits, for each seed.
        seconds: wall time of all trainings together.
        student_core_s: core-seconds of the training process, without `teacher_core_s`.
        teacher_core_s: core-seconds spent on soft labels.
        other_core_s: core-seconds of the reader's engine and of the coordinator with its Redis.
        starved_s: seconds in which the student waited for soft labels.
        resends: requests to teachers beyond the first for each batch.
        stream: summary of the batches that the students received.
    """

    mode: Mode
    accuracy: tuple[float, ...]
    seconds: float
    student_core_s: float
    stream: StreamSummary
    teacher_core_s: float = 0.0
    other_core_s: float = 0.0
    starved_s: float = 0.0
    resends: int = 0

    @property
    def samples_per_s(self) -> float:
        """Samples per second of wall time."""
        return self.stream.samples / self.seconds

    @property
    def core_s_per_sample(self) -> float:
        """Core-seconds per sample of all processes."""
        total = self.student_core_s + self.teacher_core_s + self.other_core_s
        return total / self.stream.samples


@dataclass(eq=False, repr=False, slots=True)
class StudentTraining:
    """Trains the students of one mode, one per seed, on consecutive parts of a stream.

    Args:
        mode: name of the mode.
        batches: tuples (image, label, number[, soft label]); there are `settings.batches`.
        loss: loss of the students.
        digits: data set with the test digits, on which the accuracy is measured.
        settings: steps and learning rate.
        network: makes a student.
        framework: framework of the student.
        predictor: the teacher, if `batches` are labelled in this process.
    """

    mode: Mode
    batches: InitVar[Iterable[Any]]
    loss: DistillLoss
    digits: DigitDataset
    settings: DemoSettings
    network: Callable[[], Any] = student_network
    framework: FrameworkName = "paddle"
    predictor: Predictor | None = None
    _check: StreamCheck = field(default_factory=StreamCheck, init=False)
    _stream: Iterator[tuple[Any, ...]] = field(init=False)
    _accuracy: list[float] = field(default_factory=list, init=False)
    _seconds: float = field(default=0.0, init=False)
    _core_s: float = field(default=0.0, init=False)

    def __post_init__(self, batches: Iterable[Any]) -> None:
        self._stream = self._check.watch(batches)

    def run(self, count: int, on_batch: OnBatch) -> None:
        """Train `count` more students."""
        began, began_cpu = time.perf_counter(), time.process_time()
        for number in range(count):
            self._train_student(number * self.settings.steps, on_batch)
        self._seconds += time.perf_counter() - began
        self._core_s += time.process_time() - began_cpu

    @property
    def result(self) -> ModeResult:
        """Result of the students trained so far."""
        teacher_core_s = self.predictor.cpu_s if self.predictor else 0.0
        return ModeResult(
            self.mode,
            tuple(self._accuracy),
            self._seconds,
            self._core_s - teacher_core_s,
            self._check.summary,
            teacher_core_s,
        )

    def _train_student(self, batches_before: int, on_batch: OnBatch) -> None:
        settings = self.settings
        if self.framework == "paddle":
            load_paddle()
        framework_named(self.framework).seed(FIRST_SEED + len(self._accuracy))
        student = self.network()
        optimizer = _adam(self.framework, student, settings.learning_rate)

        def after_step(report: StepReport) -> None:
            on_batch(batches_before + report.step)

        Trainer(student, self.loss, optimizer, on_step=[after_step]).fit(
            self._stream, steps=settings.steps
        )
        self._accuracy.append(accuracy(student, self.digits.test_image, self.digits.test_label))


def _adam(framework: FrameworkName, model: Any, rate: float) -> Any:
    if framework == "torch":
        import torch

        return torch.optim.Adam(model.parameters(), rate)
    import paddle

    return paddle.optimizer.Adam(rate, parameters=model.parameters())


def online_training(
    digits: DigitDataset, settings: DemoSettings, predictor: Predictor
) -> StudentTraining:
    """Make the training with the teacher in the same process."""
    batches = label_in_process(BatchSource(digits, settings), predictor)
    loss = distill_loss(settings)
    return StudentTraining("online", batches, loss, digits, settings, predictor=predictor)


def n_training(digits: DigitDataset, settings: DemoSettings) -> StudentTraining:
    """Make the training with hard labels only (the paper's N-training)."""
    loss = DistillLoss(alpha=1, beta=0)
    return StudentTraining("n_training", BatchSource(digits, settings), loss, digits, settings)


def distill_loss(settings: DemoSettings) -> DistillLoss:
    """Return the loss of all modes with a teacher."""
    return DistillLoss(settings.alpha, settings.beta, settings.temperature)


def label_in_process(
    batches: Iterable[Batch], predictor: Callable[[Any], Any]
) -> Generator[tuple[Any, ...]]:
    """Yield each batch with the soft labels that `predictor` computes for its images."""
    for batch in batches:
        yield (*batch, predictor(batch[0]))

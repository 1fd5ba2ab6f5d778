"""The ways to train the same students: without a teacher, with one beside, with the mesh."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from ...student import DistillLoss, StepReport, Trainer, accuracy
from .digits import Batch, BatchSource, Digits
from .networks import load_paddle, student_network
from .predictor import Predictor
from .settings import DemoSettings
from .stream_check import StreamCheck, StreamFacts

if TYPE_CHECKING:
    from paddle.nn import Layer

Mode = Literal["n_training", "online", "online_all_cores", "edl_dist"]
TITLES: dict[Mode, str] = {
    "n_training": "N-training",
    "online": "Online",
    "online_all_cores": "Online (all)",
    "edl_dist": "EDL-Dist",
}

#: The student of seed s starts from FIRST_SEED + s.
FIRST_SEED = 1000

#: Called after each batch with the number of batches that this run has trained.
OnBatch = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class ModeResult:
    """What came of one mode.

    Attributes:
        mode: which.
        accuracy: on the held-out digits, one per seed.
        seconds: wall time of all trainings together.
        student_core_s: core-seconds of the training process, without those of `teacher_core_s`.
        teacher_core_s: core-seconds spent on soft labels.
        other_core_s: core-seconds of the reader's engine and of the coordinator with its Redis.
        starved_s: seconds that the student waited for soft labels.
        resends: requests to teachers beyond the first for their batch.
        stream: what the students received.
    """

    mode: Mode
    accuracy: tuple[float, ...]
    seconds: float
    student_core_s: float
    stream: StreamFacts
    teacher_core_s: float = 0.0
    other_core_s: float = 0.0
    starved_s: float = 0.0
    resends: int = 0

    @property
    def samples_per_s(self) -> float:
        """Throughput of the students."""
        return self.stream.samples / self.seconds

    @property
    def core_s_per_sample(self) -> float:
        """Core-seconds per sample, everything included."""
        total = self.student_core_s + self.teacher_core_s + self.other_core_s
        return total / self.stream.samples


class Training:
    """Students of one mode, one per seed, on consecutive stretches of one stream of batches.

    Attributes:
        mode: what the result is called.

    Args:
        mode: see above.
        batches: (image, label, number[, soft label]), `settings.batches` of them.
        loss: of the student.
        digits: those held out tell the accuracy.
        settings: seeds and steps.
        network: makes a student.
    """

    def __init__(
        self,
        mode: Mode,
        batches: Iterable[Any],
        loss: DistillLoss,
        digits: Digits,
        settings: DemoSettings,
        network: Callable[[], Layer] = student_network,
    ) -> None:
        self.mode: Mode = mode
        self._loss = loss
        self._digits = digits
        self._settings = settings
        self._network = network
        self._check = StreamCheck()
        self._stream = self._check.watch(batches)
        self._accuracy: list[float] = []
        self._seconds = self._core_s = 0.0

    def run(self, seeds: int, on_batch: OnBatch) -> None:
        """Train this many more students."""
        began, began_cpu = time.perf_counter(), time.process_time()
        for number in range(seeds):
            self._train_student(number * self._settings.steps, on_batch)
        self._seconds += time.perf_counter() - began
        self._core_s += time.process_time() - began_cpu

    @property
    def result(self) -> ModeResult:
        """What came of the students trained so far."""
        return ModeResult(
            self.mode, tuple(self._accuracy), self._seconds, self._core_s, self._check.facts
        )

    def _train_student(self, before: int, on_batch: OnBatch) -> None:
        settings = self._settings
        paddle = load_paddle()
        paddle.seed(FIRST_SEED + len(self._accuracy))
        student = self._network()
        optimizer = paddle.optimizer.Adam(settings.learning_rate, parameters=student.parameters())

        def after_step(report: StepReport) -> None:
            on_batch(before + report.step)

        Trainer(student, self._loss, optimizer, on_step=[after_step]).fit(
            self._stream, steps=settings.steps
        )
        self._accuracy.append(accuracy(student, self._digits.test_image, self._digits.test_label))


class Online(Training):
    """Students with the teacher in their process, which labels each batch before its step."""

    def __init__(self, digits: Digits, settings: DemoSettings, predictor: Predictor) -> None:
        batches = label_in_process(BatchSource(digits, settings), predictor)
        super().__init__("online", batches, distill_loss(settings), digits, settings)
        self._predictor = predictor

    @property
    def result(self) -> ModeResult:
        """What came of the students trained so far."""
        both, teacher_core_s = super().result, self._predictor.cpu_s
        return replace(
            both,
            student_core_s=both.student_core_s - teacher_core_s,
            teacher_core_s=teacher_core_s,
        )


def n_training(digits: Digits, settings: DemoSettings) -> Training:
    """Students that learn by hard labels alone (the paper's N-training)."""
    loss = DistillLoss(alpha=1, beta=0)
    return Training("n_training", BatchSource(digits, settings), loss, digits, settings)


def distill_loss(settings: DemoSettings) -> DistillLoss:
    """The loss of both modes with a teacher."""
    return DistillLoss(settings.alpha, settings.beta, settings.temperature)


def label_in_process(
    batches: Iterable[Batch], predictor: Callable[[Any], Any]
) -> Generator[tuple[Any, ...]]:
    """Each batch with the soft label that `predictor` gives to its image."""
    source: Iterator[Batch] = iter(batches)
    for batch in source:
        yield (*batch, predictor(batch[0]))

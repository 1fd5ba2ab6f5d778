"""The ways to train the same students: without a teacher, with one beside, with the mesh."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
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

#: Called with the number of batches trained so far in this mode.
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


def run_n_training(digits: Digits, settings: DemoSettings, on_batch: OnBatch) -> ModeResult:
    """Train by hard labels alone (the paper's N-training)."""
    return train_students(
        "n_training",
        BatchSource(digits, settings),
        DistillLoss(alpha=1, beta=0),
        digits,
        settings,
        on_batch,
    )


def run_online(
    digits: Digits, settings: DemoSettings, predictor: Predictor, on_batch: OnBatch
) -> ModeResult:
    """Train with the teacher in the training process, labelling each batch before its step."""
    before = predictor.cpu_s
    with closing(label_in_process(BatchSource(digits, settings), predictor)) as batches:
        result = train_students(
            "online", batches, distill_loss(settings), digits, settings, on_batch
        )
    teacher_core_s = predictor.cpu_s - before
    return ModeResult(
        result.mode,
        result.accuracy,
        result.seconds,
        result.student_core_s - teacher_core_s,
        result.stream,
        teacher_core_s,
    )


def train_students(
    mode: Mode,
    batches: Iterable[Any],
    loss: DistillLoss,
    digits: Digits,
    settings: DemoSettings,
    on_batch: OnBatch,
    network: Callable[[], Layer] = student_network,
) -> ModeResult:
    """Train one student per seed on consecutive stretches of one stream of batches.

    Args:
        mode: what the result is called.
        batches: (image, label, number[, soft label]), `settings.batches` of them.
        loss: of the student.
        digits: those held out tell the accuracy.
        settings: seeds and steps.
        on_batch: called after each batch.
        network: makes a student.
    """
    paddle = load_paddle()
    check = StreamCheck()
    stream = check.watch(batches)
    reached: list[float] = []

    def after_step(report: StepReport) -> None:
        on_batch(len(reached) * settings.steps + report.step)

    began, began_cpu = time.perf_counter(), time.process_time()
    for seed in range(settings.seeds):
        paddle.seed(FIRST_SEED + seed)
        student = network()
        optimizer = paddle.optimizer.Adam(settings.learning_rate, parameters=student.parameters())
        Trainer(student, loss, optimizer, on_step=[after_step]).fit(stream, steps=settings.steps)
        reached.append(accuracy(student, digits.test_image, digits.test_label))
    return ModeResult(
        mode,
        tuple(reached),
        time.perf_counter() - began,
        time.process_time() - began_cpu,
        check.facts,
    )


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

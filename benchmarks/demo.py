"""Speeds of the ways that `edl demo` compares, in alternating turns, and a mesh's top speed.

The demo trains one way after another. So if the machine's speed changes within seconds, the demo's
ratios change, too. Here a few steps of each way alternate: N-training; distillation with constant
soft labels while a process outside the mesh keeps the teachers' cores busy; Online; EDL-Dist with a
full buffer and without killed teachers. No mesh can be faster than the second way: it includes the
cost of the soft loss, and of the caches and memory that the cores share.
"""

from __future__ import annotations

import contextlib
import logging
import os
import statistics
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..distill_reader import DistilReader
from ..mesh.cores import available_cores, on_cores, pin_process
from ..mesh.demo.cli import PADDLE_ENVIRONMENT, check_installed
from ..mesh.demo.cpu_cores import CoreAssignment
from ..mesh.demo.digits import CLASSES, BatchSource, load_digits
from ..mesh.demo.edl_dist import SERVICE, open_reader, wait_for_teachers
from ..mesh.demo.models import Predictor, load_paddle, obtain_teacher, student_network
from ..mesh.demo.modes import FIRST_SEED, StreamCheck, distill_loss, label_in_process
from ..mesh.demo.run import usable_cache
from ..mesh.demo.settings import DemoSettings
from ..mesh.local import LocalMesh, TeacherSpec
from ..mesh.output import cache_folder
from ..proto.channel import Channel
from ..runtime.errors import NoTeacherAvailable
from ..runtime.lifecycle import wait_until
from ..student.losses import DistillLoss
from ..student.trainer import Trainer
from .children import Child
from .report import MIN_ROUNDS, BenchmarkReport, Estimate, Goal, Row, interleaved

log = logging.getLogger(__name__)

WAYS = ("N-training", "labels at hand", "Online", "EDL-Dist")
N_TRAINING, AT_HAND, ONLINE, EDL_DIST = WAYS
#: Least speed of EDL-Dist relative to Online and to N-training: the goals of the demo.
TO_ONLINE, TO_N_TRAINING = 1.6, 0.95
#: Least speed of EDL-Dist relative to training with labels at hand.
TO_AT_HAND: Final = 0.95
STEPS, ROUNDS = 6, 60
QUICK_STEPS: Final = 2
#: Greatest number of batches per step by which EDL-Dist's buffer may shrink during a turn.
FROM_BUFFER: Final = 0.1
#: Steps of EDL-Dist before each of its turns, so that its teachers are busy when the turn begins.
LEAD_IN: Final = 6
#: Longest time in seconds for refilling the buffer before a turn of EDL-Dist.
_FULL_S: Final = 60.0
_POLL_S: Final = 0.05


def run(quick: bool) -> BenchmarkReport:
    """Measure all ways, interleaved.

    Args:
        quick: fewer rounds, and fewer steps in each turn.
    """
    check_installed()
    os.environ.update(PADDLE_ENVIRONMENT)
    steps, rounds = (QUICK_STEPS, MIN_ROUNDS) if quick else (STEPS, ROUNDS)
    upper = DemoSettings().upper_batches
    all_steps = (rounds + 1) * (steps + LEAD_IN) + upper
    # At the upper limit, pulling pauses until the lower limit is reached: keep this pause short.
    settings = replace(DemoSettings(), students=1, steps=all_steps, lower_batches=upper - 2)
    available = available_cores()
    cores = CoreAssignment.divide(available)
    digits = load_digits(settings.size)
    with ExitStack() as stack:
        stack.callback(pin_process, available)
        pin_process(cores.student)
        folder = stack.enter_context(usable_cache(cache_folder("demo"), log.info))
        log.info("obtain the teacher")
        teacher = obtain_teacher(digits, settings, folder, fresh=False, on_step=_ignore).path
        log.info("start a mesh, and a process outside it")
        mesh = stack.enter_context(_mesh(str(teacher), settings, cores))
        neighbour = _neighbour(stack, teacher, cores)
        predictor = Predictor(teacher, micro_batch=settings.micro_batch)
        source = BatchSource(digits, settings)
        train_plain = _student(source, DistillLoss(alpha=1, beta=0))
        constant_labels = np.zeros((settings.batch_size, CLASSES), np.float32)
        train_at_hand = _student(
            label_in_process(source, lambda image: constant_labels), distill_loss(settings)
        )
        train_online = _student(label_in_process(source, predictor), distill_loss(settings))
        reader = stack.enter_context(open_reader(mesh, digits, settings, cores))
        wait_for_teachers(reader, settings.teachers, lambda: None)
        train_edl_dist = _student(iter(reader), distill_loss(settings))
        from_buffer: list[float] = []

        def with_labels_at_hand() -> float:
            neighbour.ask("work")
            try:
                return train_at_hand(steps)
            finally:
                neighbour.ask("rest")

        def with_a_full_buffer() -> float:
            _await_labels(reader, settings.lower_batches)
            train_edl_dist(LEAD_IN)
            before = reader.stats.ready
            step_s = train_edl_dist(steps)
            from_buffer.append((before - reader.stats.ready) / steps)
            return step_s

        log.info("%d rounds of %d steps of each way", rounds + 1, steps)
        measured = interleaved(
            lambda: train_plain(steps),
            with_labels_at_hand,
            lambda: train_online(steps),
            with_a_full_buffer,
            rounds=rounds,
        )
    return judge(measured, from_buffer)


def _student(batches: Iterable[Any], loss: DistillLoss) -> Callable[[int], float]:
    """Make a student; return a function that trains it further and returns seconds per step."""
    paddle = load_paddle()
    paddle.seed(FIRST_SEED)
    student = student_network()
    optimizer = paddle.optimizer.Adam(DemoSettings().learning_rate, parameters=student.parameters())
    trainer = Trainer(student, loss, optimizer)
    stream = StreamCheck().watch(batches)

    def train(steps: int) -> float:
        return trainer.fit(stream, steps=steps).seconds / steps

    return train


@contextlib.contextmanager
def _mesh(teacher: str, settings: DemoSettings, cores: CoreAssignment) -> Iterator[LocalMesh]:
    """Run a coordinator and ready teachers on the cores that the student does not use."""
    spec = TeacherSpec(SERVICE, teacher, micro_batch=settings.micro_batch)
    with ExitStack() as stack:
        with on_cores(cores.others):
            mesh = stack.enter_context(LocalMesh())
            names = [f"teacher-{number + 1}" for number in range(settings.teachers)]
            for name in names:
                mesh.start_teacher(name, spec)
        for name in names:
            mesh.wait_ready(name)
        yield mesh


def _neighbour(stack: ExitStack, teacher: Path, cores: CoreAssignment) -> Child:
    """Start a process that labels on the teachers' cores, outside the mesh, on request."""
    with on_cores(cores.others):
        child = Child(stack, "the neighbour", label_on_request, str(teacher))
    child.receive()
    return child


def label_on_request(channel: Channel, model: str) -> None:
    """Label one batch repeatedly between "work" and "rest": the function of the neighbour.

    It answers "work" at once, and "rest" when its last batch has ended.

    Args:
        channel: its first message to the benchmark means that the model is loaded.
        model: path of the teacher's model.
    """
    settings = DemoSettings()
    image, *_ = next(iter(BatchSource(load_digits(settings.size), settings)))
    predictor = Predictor(Path(model), micro_batch=settings.micro_batch)
    predictor(image)
    working, computing = threading.Event(), threading.Lock()

    def work() -> None:
        while working.wait():
            with computing:
                predictor(image)

    threading.Thread(target=work, daemon=True).start()
    channel.send("ready")
    for message in channel:
        if message["kind"] == "work":
            working.set()
        else:
            working.clear()
            with computing:
                pass
        channel.send("done")


def _await_labels(reader: DistilReader, batches: int) -> None:
    """Wait until `batches` labelled batches are ready.

    Raises:
        NoTeacherAvailable: they are not ready within `_FULL_S`.
    """
    if not wait_until(lambda: reader.stats.ready >= batches, _FULL_S, _POLL_S):
        ready = reader.stats.ready
        raise NoTeacherAvailable(f"{ready} of {batches} batches labelled in {_FULL_S:.0f} s")


def _ignore(done: int, total: int) -> None:
    """Ignore the progress of the teacher's training."""


def judge(measured: Sequence[Sequence[float]], from_buffer: Sequence[float]) -> BenchmarkReport:
    """Make the report.

    Args:
        measured: for each of `WAYS`, seconds per step in each round.
        from_buffer: for the warm-up round and each round, the batches per step by which EDL-Dist's
            buffer shrank.
    """
    by_way = dict(zip(WAYS, measured, strict=True))
    rows: list[Row] = []
    for way, steps_s in by_way.items():
        # How many times as fast as each base the way is.
        ratios = {f"x {base}": Estimate.of_ratio(by_way[base], steps_s).value for base in WAYS[:3]}
        rows.append(
            {
                "way": way,
                "step_ms": 1e3 * statistics.median(steps_s),
                "fastest_ms": 1e3 * min(steps_s),
                "slowest_ms": 1e3 * max(steps_s),
                **ratios,
            }
        )
    goals = [
        Goal.judge(
            f"EDL-Dist, x {base}", Estimate.of_ratio(by_way[base], by_way[EDL_DIST]), ">=", least
        )
        for base, least in ((ONLINE, TO_ONLINE), (N_TRAINING, TO_N_TRAINING), (AT_HAND, TO_AT_HAND))
    ]
    buffered = Estimate.of(from_buffer[-len(by_way[EDL_DIST]) :])
    goals.append(
        Goal.judge("EDL-Dist, batches per step from its buffer", buffered, "<=", FROM_BUFFER)
    )
    return BenchmarkReport(rows, goals)

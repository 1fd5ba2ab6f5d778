"""Throughput of a mesh relative to the possible throughput, and cost of a reader per training step.

Teachers are real processes with emulated devices of stated rates; the student is an emulated step
of a stated length. The possible throughput is the student's alone or that of all teachers together,
whichever is smaller. Further cases: one teacher is far slower than the others; one is suspended; a
student gets teachers that it lacked. Finally, a real training step runs with and without a reader.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, Final

import numpy as np

from ..distill_reader import DistilReader
from ..mesh.cores import on_cores, pin_process
from ..proto.channel import Channel
from ..student.losses import DistillLoss
from ..student.trainer import Trainer
from ..teacher.backends.paddle import import_paddle
from .children import Child, two_cores
from .paced import SERVICE, Repeated
from .paced.changes import joined, suspended
from .paced.streams import ThroughputShare, share, straggler
from .paced.teachers import PICTURES, paced, start_teachers
from .report import BenchmarkReport, Estimate, Goal, Row, interleaved

log = logging.getLogger(__name__)

#: Seconds of a batch at a teacher -> least share of the possible throughput.
PACES: Final = {0.1: 0.99, 0.02: 0.98}
QUICK_PACES: Final = (0.02,)
#: Length of the student's step, in multiples of the teachers' joint time for one batch.
CASES: Final = {"teacher-bound": 0.5, "balanced": 1.0, "student-bound": 1.5}
TEACHERS: Final = 2
#: With one teacher TIMES_SLOWER than the others: least share of the sum of all teachers' rates.
STRAGGLER, TIMES_SLOWER = 0.95, 10
#: Longest wait of a student when a teacher is suspended, and content of its buffer, in seconds.
PAUSE_S, VOLUME_S = 1.5, 2.0
#: Least rate of a student with all teachers that it needs, relative to one without teachers.
OF_N_TRAINING: Final = 0.97
#: Greatest CPU time of a step with a reader, relative to a step without.
STEP: Final = 1.03
_STEP_ROWS: Final = 8
_CLASSES: Final = 1000
_SUSPENDED_S: Final = 4.0


def run(quick: bool) -> BenchmarkReport:
    """Measure throughputs, the cases with faults, and the step.

    Args:
        quick: shorter windows, smaller batches in the step, one suspension, only the faster
            teachers; the case with teachers that join later is left out.
    """
    rows: list[Row] = []
    goals: list[Goal] = []
    began_s = time.monotonic()

    def begin(name: str) -> None:
        log.info("%3.0f s: %s", time.monotonic() - began_s, name)

    def add(name: str, result: ThroughputShare, least: float) -> None:
        name = f"emulated, {name}"
        rows.append(_row(name, result.possible_per_s, result.part, result.waited_s))
        goals.append(
            Goal.judge(f"{name}: part of the possible throughput", result.part, ">=", least)
        )

    for teacher_s in QUICK_PACES if quick else PACES:
        with ExitStack() as stack:
            started = start_teachers(stack, [paced(teacher_s)] * TEACHERS)
            addresses = [address for address, _ in started]
            for case, times in CASES.items():
                name = f"{case}, {teacher_s * 1000:g} ms a batch"
                begin(name)
                step_s = times * teacher_s / TEACHERS
                window_s = 0.1 if quick else 6 * teacher_s + 0.1
                add(name, share(addresses, teacher_s, step_s, window_s), PACES[teacher_s])
    begin(f"one teacher of 4 is {TIMES_SLOWER} times slower")
    result = straggler(0.015 if quick else 0.04, 3, TIMES_SLOWER)
    add(f"1 of 4 {TIMES_SLOWER} x slower", result, STRAGGLER)
    if not quick:
        begin("two teachers fewer than needed at first, and the missing ones join")
        result = joined(0.1, needed=4, spares=2, window_s=0.4)
        add("begun with n - 2 teachers", result, OF_N_TRAINING)
    begin("one teacher of 3 is suspended")
    pause_s = suspended(0.05, 3, 0.05, VOLUME_S, _SUSPENDED_S, times=1 if quick else 3)
    name = f"emulated, 1 of 3 suspended, volume {VOLUME_S:g} s: longest wait, s"
    goals.append(Goal.judge(name, pause_s, "<=", PAUSE_S))
    begin("a step of MobileNetV3-small, alternately with and without a reader")
    cost = step(rows=2 if quick else _STEP_ROWS, batches=1)
    name = "MobileNetV3-small step: CPU with a reader / without"
    goals.append(Goal.judge(name, cost, "<=", STEP))
    return BenchmarkReport(rows, goals)


def step(rows: int, batches: int) -> Estimate:
    """Return the CPU time that a training process takes with a reader, relative to without one.

    Args:
        rows: rows of a batch.
        batches: batches of each turn.
    """
    other, core = two_cores()
    with ExitStack() as stack:
        [(address, _)] = start_teachers(stack, [paced(0.05, rows)], PICTURES)
        with on_cores([other]):  # the reader's engine inherits this core
            student = Child(stack, "the student", train, core, rows, address)
        student.receive()

        def used_s(with_reader: bool) -> float:
            answer = student.ask("run", batches=batches, with_reader=with_reader)
            return float(answer["cpu_s"])

        return Estimate.of_ratio(*interleaved(lambda: used_s(True), lambda: used_s(False)))


def train(channel: Channel, core: int, rows: int, address: str) -> None:
    """Train MobileNetV3-small on images, with a reader or without: the process of `step`.

    Each message has a number of batches, and whether a reader provides the soft labels; the answer
    has the CPU seconds of this process.

    Args:
        channel: its first message to the benchmark means that training can begin.
        core: core of the training; the reader's engine stays on the core on which this process
            started.
        rows: rows of a batch.
        address: address of the teacher.
    """
    os.environ.update({"OMP_NUM_THREADS": "1", "GLOG_minloglevel": "2"})
    trainer = _trainer()
    image = np.random.default_rng(0).standard_normal((rows, 3, 224, 224), np.float32)
    label = np.zeros((rows, 1), np.int64)
    unlabelled = Repeated(image, label)
    labelled = Repeated(image, label, np.zeros((rows, _CLASSES), np.float32))
    with DistilReader(unlabelled, service=SERVICE, teachers=[address], feeds=[0]) as reader:
        pin_process([core])
        loaders: dict[bool, Iterable[Any]] = {True: reader, False: labelled}
        channel.send("ready")
        for message in channel:
            unlabelled.count = labelled.count = message["batches"]
            began_s = time.process_time()
            trainer.fit(loaders[message["with_reader"]], epochs=1)
            channel.send("ran", cpu_s=time.process_time() - began_s)


def _trainer() -> Trainer:
    paddle = import_paddle()
    from paddle.vision import models

    paddle.seed(0)
    network = models.mobilenet_v3_small(num_classes=_CLASSES)
    optimizer = paddle.optimizer.SGD(1e-3, parameters=network.parameters())
    return Trainer(network, DistillLoss(0.5, 0.5), optimizer)


def _row(case: str, possible_per_s: float, part: Estimate, waited_s: float) -> Row:
    return {
        "case": case,
        "possible_per_s": possible_per_s,
        **part.columns("delivered"),
        "longest_wait_s": waited_s,
    }

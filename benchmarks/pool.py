"""Throughput and latency of `TeacherPool`, compared with a reader of the same engine and teachers.

Eight threads call for the labels of one batch after the other; alternately, the reader delivers as
many batches of the same content. Teachers take a stated time for each batch, or none: then only
copies and wake-ups of threads are measured. The latency is that of calls with one row, one after
the other, to a teacher that takes no time, over loopback TCP.
"""

from __future__ import annotations

import logging
import statistics
from contextlib import ExitStack
from typing import Final

from ..mesh.cores import on_cores
from .children import Child, two_cores
from .paced import ROWS, SERVICE, batch
from .paced.teachers import paced, start_teachers
from .report import MIN_ROUNDS, BenchmarkReport, Estimate, Goal, Row, interleaved, quantile
from .transports import HOST, SHAPE, processes, trainer
from .transports.codec import MODEL

log = logging.getLogger(__name__)

#: Seconds of a batch at a teacher.
BATCH_S: Final = 0.02
TEACHERS: Final = 2
#: Least rate of the pool, relative to that of the reader.
OF_READER: Final = 0.95
#: Longest median latency of a call with one row, in seconds.
LATENCY_S: Final = 1.5e-3


def run(quick: bool) -> BenchmarkReport:
    """Measure rates with paced and with instant teachers, and the latency.

    Args:
        quick: fewer batches in each turn.
    """
    rows: list[Row] = []
    with ExitStack() as stack:
        log.info("teachers that take %g s for a batch", BATCH_S)
        teachers = start_teachers(stack, [paced(BATCH_S)] * TEACHERS)
        addresses = [address for address, _ in teachers]
        student = _start_student(stack, SERVICE, batch().shape, batch().dtype.name, addresses)
        ratio, rows_of_rates = _rates(
            student, 50 if quick else 200, ROWS, f"teachers of {BATCH_S:g} s"
        )
        rows += rows_of_rates
    with ExitStack() as stack:
        log.info("teachers that take no time")
        with on_cores(two_cores()):
            instant = [
                Child(stack, f"teacher {number}", processes.serve, "codec", SHAPE, "uint8", "")
                for number in range(TEACHERS)
            ]
        addresses = [f"{HOST}:{teacher.receive()['port']}" for teacher in instant]
        student = _start_student(stack, MODEL, SHAPE, "uint8", addresses)
        rows += _rates(student, 20 if quick else 100, SHAPE[0], "instant teachers")[1]
        calls = 50 if quick else 200
        rounds = [student.ask("latency", batches=calls)["seconds"] for _ in range(MIN_ROUNDS)]
    median_s = Estimate.of([statistics.median(seconds) for seconds in rounds])
    all_s = [call_s for seconds in rounds for call_s in seconds]
    for part in (0.5, 0.9, 0.99):
        name = f"p{100 * part:g} (s)"
        rows.append({"case": "latency of one row", "figure": name, "value": quantile(all_s, part)})
    return BenchmarkReport(
        rows,
        [
            Goal.judge("8 threads: rate of the pool, times the reader's", ratio, ">=", OF_READER),
            Goal.judge_speed("one row: median latency (s)", median_s, "<=", LATENCY_S),
        ],
    )


def _start_student(
    stack: ExitStack, service: str, shape: tuple[int, ...], dtype: str, addresses: list[str]
) -> Child:
    with on_cores(two_cores()):
        student = Child(
            stack, "the student", trainer.train, shape, dtype, service, addresses, False
        )
    student.receive()
    return student


def _rates(student: Child, batches: int, rows: int, case: str) -> tuple[Estimate, list[Row]]:
    """Measure the rate of the pool relative to the reader's; return it, and rows with all rates."""

    def turn(kind: str) -> float:
        return float(student.ask(kind, batches=batches)["wall_s"])

    samples = interleaved(lambda: turn("run"), lambda: turn("call"))
    ratio = Estimate.of_ratio(*samples)
    figures = {
        f"{name} (samples/s)": batches * rows / statistics.median(seconds)
        for name, seconds in zip(("reader", "pool"), samples, strict=True)
    }
    figures["pool, times the reader"] = ratio.value
    return ratio, [{"case": case, "figure": name, "value": rate} for name, rate in figures.items()]

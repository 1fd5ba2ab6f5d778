"""Samples per second of a reader with instant teachers, compared with a plain socket.

The benchmark runs the real `DistilReader` with its engine, and 1 to 8 teachers that consist only of
their network side, one process each. Batches of 32 images travel over loopback TCP, or stay in
shared memory, as between processes of one host. The system schedules trainer, engine and teachers
freely on two cores, as in a real training. Client and server of the plain socket use the same two
cores: in each round once freely, and once pinned to one core each. The reader is compared with the
faster of the two. Another row is the floor: the same socket, but each batch is copied first, as in
every reader that sends from another process than the training. A reader compiled to machine code
would lie between the row of the reader and the floor.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Final

import numpy as np

from ..mesh.cores import on_cores
from .children import Child, two_cores
from .report import BenchmarkReport, Estimate, Goal, Row, interleaved
from .transports import HOST, SHAPE, processes, trainer
from .transports.codec import MODEL
from .transports.processes import RequestTimes, RunningTransport

log = logging.getLogger(__name__)

DTYPES: Final = ("uint8", "float32")
TEACHERS: Final = (1, 2, 5, 8)
#: Plain sockets: client and server pinned to one core each, or both free to use two cores.
PINNED: Final = "raw TCP, a core each"
SHARED: Final = "raw TCP"
#: The least work of any reader: a copy of each batch, and a plain socket.
FLOOR: Final = "floor"
REMOTE: Final = "remote"
SAME_HOST: Final = "same host"
#: Location of the teachers -> whether the reader may use shared memory.
LOCATIONS: Final = {REMOTE: False, SAME_HOST: True}
#: Location of the teachers -> name in `transports.processes` of the floor.
FLOORS: Final = {REMOTE: "copied", SAME_HOST: "copied_local"}
#: Least rate of two teachers over loopback in uint8, relative to raw TCP.
OF_RAW_TCP: Final = 0.45
#: Least rate of two teachers of the same host, relative to raw TCP.
SAME_HOST_TIMES: Final = 2.0
#: Least rate of any number of teachers, relative to that of fewer teachers.
KEPT: Final = 0.85
_BYTES_PER_TURN: Final = 500e6
_QUICK_BYTES_PER_TURN: Final = 100e6
_ROWS: Final = SHAPE[0]


def run(quick: bool) -> BenchmarkReport:
    """Measure batches of 32 x 3 x 224 x 224, in uint8 (4.8 MB) and in float32 (19.3 MB).

    Args:
        quick: fewer batches in each turn, and uint8 only.
    """
    rows: list[Row] = []
    goals: list[Goal] = []
    for dtype in DTYPES[: 1 if quick else None]:
        for location in LOCATIONS:
            log.info("%s, %s: %s teachers", dtype, location, ", ".join(map(str, TEACHERS)))
            measurement = measure(dtype, location, TEACHERS, _batches(dtype, quick))
            rows += _rows(dtype, location, measurement)
            goals += judge(dtype, location, measurement)
    return BenchmarkReport(rows, goals)


@dataclass
class ReaderTimes:
    """Seconds per sample of a reader or a plain socket, for each turn. The first is the warm-up.

    Attributes:
        wall_s: wall time.
        trainer_s: CPU time of the trainer, or of the client.
        engine_s: CPU time of the reader's engine.
        teachers_s: CPU time of all teachers, or of the server.
    """

    wall_s: list[float] = field(default_factory=list)
    trainer_s: list[float] = field(default_factory=list)
    engine_s: list[float] = field(default_factory=list)
    teachers_s: list[float] = field(default_factory=list)

    def rate_to(self, other: ReaderTimes) -> Estimate:
        """Estimate its rate relative to that of `other`, from paired rounds."""
        return Estimate.of_ratio(other.wall_s[1:], self.wall_s[1:])


@dataclass(frozen=True, slots=True)
class ReaderMeasurement:
    """Times of plain sockets and readers, interleaved.

    Attributes:
        sockets: `SHARED` and `PINNED` -> times of the plain socket; `FLOOR` -> times of the floor.
        readers: number of teachers -> times of the reader.
    """

    sockets: Mapping[str, ReaderTimes]
    readers: Mapping[int, ReaderTimes]

    @property
    def raw(self) -> ReaderTimes:
        """The times of the faster plain socket."""
        plain = [times for name, times in self.sockets.items() if name != FLOOR]
        return min(plain, key=lambda times: statistics.median(times.wall_s[1:]))


def measure(dtype: str, location: str, teachers: Sequence[int], batches: int) -> ReaderMeasurement:
    """Measure plain sockets and readers, interleaved.

    Args:
        dtype: dtype of the batches.
        location: `REMOTE` or `SAME_HOST`.
        teachers: numbers of teachers; each number is measured with a reader of its own.
        batches: batches of each turn.

    Raises:
        ProcessFailed: a process did not start, or ended unexpectedly.
    """
    with ExitStack() as stack:
        sockets = {
            name: RunningTransport(stack, by, SHAPE, dtype, share_cores=name != PINNED)
            for name, by in ((SHARED, "tcp"), (PINNED, "tcp"), (FLOOR, FLOORS[location]))
        }
        turns: list[Callable[[], float]] = [
            partial(socket.turn, batches) for socket in sockets.values()
        ]
        readers: dict[int, ReaderTimes] = {}
        with on_cores(two_cores()):
            pool = [
                Child(stack, f"teacher {number}", processes.serve, "codec", SHAPE, dtype, "")
                for number in range(max(teachers))
            ]
            addresses = [f"{HOST}:{teacher.receive()['port']}" for teacher in pool]
            for count in teachers:
                student = Child(
                    stack, f"the trainer of {count} teachers", trainer.train,
                    SHAPE, dtype, MODEL, addresses[:count], LOCATIONS[location],
                )  # fmt: skip
                student.receive()
                readers[count] = ReaderTimes()
                turns.append(partial(_turn, student, pool[:count], batches, readers[count]))
        interleaved(*turns)
        times = {name: _per_sample(socket.times) for name, socket in sockets.items()}
        return ReaderMeasurement(times, readers)


def _per_sample(requests: RequestTimes) -> ReaderTimes:
    """Convert seconds per request to seconds per sample."""
    per_request = (requests.wall_s, requests.client_cpu_s, requests.server_cpu_s)
    wall_s, client_s, server_s = ([seconds / _ROWS for seconds in times] for times in per_request)
    return ReaderTimes(wall_s, client_s, [0.0] * len(wall_s), server_s)


def _turn(trainer: Child, teachers: Sequence[Child], batches: int, times: ReaderTimes) -> float:
    """Run an epoch, append its times to `times`, and return the wall seconds per sample."""
    before_s = _used_s(teachers)
    ran = trainer.ask("run", batches=batches)
    ran["teachers_s"] = _used_s(teachers) - before_s
    samples = batches * _ROWS
    for name, seconds in vars(times).items():
        seconds.append(ran[name] / samples)
    return times.wall_s[-1]


def _used_s(teachers: Sequence[Child]) -> float:
    return sum(float(teacher.ask("use")["cpu_s"]) for teacher in teachers)


def _batches(dtype: str, quick: bool) -> int:
    per_turn = _QUICK_BYTES_PER_TURN if quick else _BYTES_PER_TURN
    return max(int(per_turn / math.prod(SHAPE) / np.dtype(dtype).itemsize), 10)


def _rows(dtype: str, location: str, measurement: ReaderMeasurement) -> Iterator[Row]:
    """Yield rates, also relative to the plain socket, and CPU microseconds per sample."""
    readers = {str(count): times for count, times in measurement.readers.items()}
    for name, times in {**measurement.sockets, **readers}.items():
        trainer, engine, teachers = (
            1e6 * statistics.median(seconds[1:])
            for seconds in (times.trainer_s, times.engine_s, times.teachers_s)
        )
        yield {
            "batches": f"{dtype}, {location}",
            "teachers": name,
            "samples_per_s": 1 / statistics.median(times.wall_s[1:]),
            **times.rate_to(measurement.raw).columns("of_raw_tcp"),
            "trainer_us": trainer,
            "engine_us": engine,
            "teachers_us": teachers,
        }


def judge(dtype: str, location: str, measurement: ReaderMeasurement) -> Iterator[Goal]:
    """Yield the goals of one location: rates relative to raw TCP, and to fewer teachers.

    Of all comparisons of more teachers with fewer, only the worst becomes a goal.
    """
    name = f"{dtype}, {location}"
    if location == REMOTE and dtype == "uint8":
        ratio = measurement.readers[2].rate_to(measurement.raw)
        yield Goal.judge(f"{name}, 2 teachers: times raw TCP", ratio, ">=", OF_RAW_TCP)
    if location == SAME_HOST:
        ratio = measurement.readers[2].rate_to(measurement.raw)
        yield Goal.judge(f"{name}, 2 teachers: times raw TCP", ratio, ">=", SAME_HOST_TIMES)
    kept = {
        (few, many): measurement.readers[many].rate_to(measurement.readers[few])
        for few, many in combinations(measurement.readers, 2)
    }
    few, many = min(kept, key=lambda pair: kept[pair].value)
    title = f"{name}: rate of {many} teachers, times that of {few}"
    yield Goal.judge(title, kept[few, many], ">=", KEPT)

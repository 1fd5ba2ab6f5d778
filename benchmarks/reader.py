"""How many samples a reader moves when teachers cost nothing, beside a plain socket.

The real `DistilReader` with its engine, and 1 to 8 teachers' socket sides, a process each. Batches
of 32 images travel over TCP of the loopback, or stay where they are, as between processes of one
host. The system places trainer, engine and teachers on two cores as it likes, as it does where
people train. Client and server of the plain socket take their turns on the same two, in each round
both so and held to one core each; what the reader has to stand beside is the faster of the two.
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

from .children import Child, two_cores_shared
from .reading import SHAPE
from .report import BenchmarkReport, Estimate, Goal, Row, interleaved
from .transports.turns import RequestTimes, RunningLane

log = logging.getLogger(__name__)

DTYPES: Final = ("uint8", "float32")
TEACHERS: Final = (1, 2, 5, 8)
#: How client and server of the plain socket may stand.
PINNED: Final = "raw TCP, a core each"
SHARED: Final = "raw TCP"
REMOTE: Final = "remote"
SAME_HOST: Final = "same host"
#: Whether batches are read in place, by lane.
LANES: Final = {REMOTE: False, SAME_HOST: True}
#: The least that two teachers over loopback take in uint8, as a part of raw TCP.
OF_RAW_TCP: Final = 0.45
#: The least that teachers of the same host take, in times of raw TCP.
SAME_HOST_TIMES: Final = 2.0
#: The least part of what fewer teachers do that more of them do.
KEPT: Final = 0.85
_BYTES_PER_TURN: Final = 500e6
_QUICK_BYTES_PER_TURN: Final = 100e6
_ROWS: Final = SHAPE[0]


def run(quick: bool) -> BenchmarkReport:
    """Batches of 32 x 3 x 224 x 224, in uint8 (4.8 MB) and in float32 (19.3 MB).

    Args:
        quick: fewer batches in each turn, and uint8 only.
    """
    rows: list[Row] = []
    goals: list[Goal] = []
    for dtype in DTYPES[: 1 if quick else None]:
        for lane in LANES:
            log.info("%s, %s: %s teachers by turns", dtype, lane, ", ".join(map(str, TEACHERS)))
            found = measure(dtype, lane, TEACHERS, _batches(dtype, quick))
            rows += _rows(dtype, lane, found)
            goals += judge(dtype, lane, found)
    return BenchmarkReport(rows, goals)


@dataclass
class ReaderTimes:
    """Of one measurement, turn by turn: seconds of each sample. The first turn does not count.

    Attributes:
        wall_s: from the beginning to the end.
        trainer_s: processor time of the trainer, or of the client.
        engine_s: of the reader's engine.
        teachers_s: of all teachers, or of the server.
    """

    wall_s: list[float] = field(default_factory=list)
    trainer_s: list[float] = field(default_factory=list)
    engine_s: list[float] = field(default_factory=list)
    teachers_s: list[float] = field(default_factory=list)

    def rate_to(self, other: ReaderTimes) -> Estimate:
        """Its rate, in times of the other's in the same rounds."""
        pairs = zip(self.wall_s[1:], other.wall_s[1:], strict=True)
        return Estimate.of([theirs_s / ours_s for ours_s, theirs_s in pairs])


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured by turns.

    Attributes:
        sockets: the plain socket, by how its sides stand.
        readers: the reader, by its number of teachers.
    """

    sockets: Mapping[str, ReaderTimes]
    readers: Mapping[int, ReaderTimes]

    @property
    def raw(self) -> ReaderTimes:
        """The plain socket where it is faster."""
        return min(self.sockets.values(), key=lambda turns: statistics.median(turns.wall_s[1:]))


def measure(dtype: str, lane: str, teachers: Sequence[int], batches: int) -> Found:
    """So many batches in each turn, with each number of teachers.

    Raises:
        ProcessFailed: a process did not start, or ended by itself.
    """
    cores = two_cores_shared()
    size = math.prod(SHAPE) * np.dtype(dtype).itemsize
    with ExitStack() as ending:
        lanes = {
            name: RunningLane(ending, "tcp", size, shared=name == SHARED)
            for name in (SHARED, PINNED)
        }
        module = "edl.benchmarks.reading.teacher"
        pool = [
            Child(ending, f"teacher {number}", module, dtype, cores)
            for number in range(max(teachers))
        ]
        addresses = [f"127.0.0.1:{teacher.hear()['port']}" for teacher in pool]
        readers: dict[int, ReaderTimes] = {}
        turns: list[Callable[[], float]] = [partial(lane.turn, batches) for lane in lanes.values()]
        for count in teachers:
            module, asked = "edl.benchmarks.reading.trainer", addresses[:count]
            options = (dtype, cores, int(LANES[lane]), *asked)
            trainer = Child(ending, f"the trainer of {count} teachers", module, *options)
            trainer.hear()
            readers[count] = ReaderTimes()
            turns.append(partial(_turn, trainer, pool[:count], batches, readers[count]))
        interleaved(*turns)
        sockets = {name: _of_a_sample(lane.turns) for name, lane in lanes.items()}
        return Found(sockets, readers)


def _of_a_sample(requests: RequestTimes) -> ReaderTimes:
    """The same of each sample as of each request."""
    used = (requests.wall_s, requests.client_cpu_s, requests.server_cpu_s)
    wall_s, client_s, server_s = ([one / _ROWS for one in each] for each in used)
    return ReaderTimes(wall_s, client_s, [0.0] * len(wall_s), server_s)


def _turn(trainer: Child, teachers: Sequence[Child], batches: int, turns: ReaderTimes) -> float:
    """An epoch; seconds of each sample."""
    before_s = _used_s(teachers)
    ran = trainer.ask("run", batches=batches)
    ran["teachers_s"] = _used_s(teachers) - before_s
    samples = batches * _ROWS
    for name, taken in vars(turns).items():
        taken.append(ran[name] / samples)
    return turns.wall_s[-1]


def _used_s(teachers: Sequence[Child]) -> float:
    return sum(float(teacher.ask("use")["cpu_s"]) for teacher in teachers)


def _batches(dtype: str, quick: bool) -> int:
    per_turn = _QUICK_BYTES_PER_TURN if quick else _BYTES_PER_TURN
    return max(int(per_turn / math.prod(SHAPE) / np.dtype(dtype).itemsize), 10)


def _rows(dtype: str, lane: str, found: Found) -> Iterator[Row]:
    """Rates beside that of the plain socket, and microseconds of processor time of a sample."""
    readers = {str(count): turns for count, turns in found.readers.items()}
    for name, turns in {**found.sockets, **readers}.items():
        ratio = turns.rate_to(found.raw)
        trainer, engine, teachers = (
            1e6 * statistics.median(taken[1:])
            for taken in (turns.trainer_s, turns.engine_s, turns.teachers_s)
        )
        yield {
            "batches": f"{dtype}, {lane}",
            "teachers": name,
            "samples_per_s": 1 / statistics.median(turns.wall_s[1:]),
            "of_raw_tcp": ratio.value,
            "low": ratio.low,
            "high": ratio.high,
            "trainer_us": trainer,
            "engine_us": engine,
            "teachers_us": teachers,
        }


def judge(dtype: str, lane: str, found: Found) -> Iterator[Goal]:
    """The goals of one lane: its rate beside raw TCP, and that more teachers cost no rate."""
    name = f"{dtype}, {lane}"
    if lane == REMOTE and dtype == "uint8":
        ratio = found.readers[2].rate_to(found.raw)
        yield Goal.judge(f"{name}, 2 teachers: times raw TCP", ratio, ">=", OF_RAW_TCP)
    if lane == SAME_HOST:
        ratio = found.readers[2].rate_to(found.raw)
        yield Goal.judge(f"{name}, 2 teachers: times raw TCP", ratio, ">=", SAME_HOST_TIMES)
    kept = {
        (few, many): found.readers[many].rate_to(found.readers[few])
        for few, many in combinations(found.readers, 2)
    }
    few, many = min(kept, key=lambda pair: kept[pair].value)
    what = f"{name}: rate of {many} teachers, times that of {few}"
    yield Goal.judge(what, kept[few, many], ">=", KEPT)

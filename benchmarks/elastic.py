"""Two elastic trainings on two slots, compared with gang scheduling; a slot for a web service.

Job A has one node, job B one or two. Under gang scheduling B waits for both slots until A ends;
under elastic scheduling B starts with one slot and grows. In the second part a training uses both
slots, and a web service under a steady load reserves one of them. The service's p99 latency on the
reserved slot is compared with its p99 before the training started. Each slot has its own equal part
of the cores. Trainings and service are real processes.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from ..coordinator.embedded import start_embedded
from ..coordinator.job_queue import DesiredJobState, QueueBoard, QueuedJob, open_queue
from ..coordinator.jobs import JobBoard, open_job_board
from ..mesh.cores import available_cores, on_cores
from ..mesh.jobs.job_run import progress_or_unknown
from ..mesh.jobs.node_scaler import divide_cores
from ..mesh.jobs.spec import QueuedJobSpec
from ..proto.channel import Channel
from ..runtime.errors import ProcessFailed, UsageError
from ..runtime.lifecycle import wait_until
from ..runtime.supervise import python_command, start
from .children import Child
from .jobs import web
from .report import MIN_ROUNDS, BenchmarkReport, Estimate, Goal, Row, quantile

log = logging.getLogger(__name__)

#: How a fleet shares its slots.
Mode = Literal["elastic", "gang"]

SLOTS: Final = 2
#: Seconds of work of job A on one slot, without and with `--quick`. Job B has `B_WORK_FACTOR` times
#: as much.
WORK_S: Final = 60.0
QUICK_WORK_S: Final = 25.0
B_WORK_FACTOR: Final = 1.4
#: Limits of the goals: ratio of the makespans of elastic and gang scheduling; ratio of their mean
#: pending times; seconds until a reserved slot is free; ratio of p99 on the reserved slot to p99
#: without jobs.
MAKESPAN: Final = 0.85
PENDING: Final = 0.5
YIELD_S: Final = 10.0
P99: Final = 1.2
#: Requests per second to the service.
PER_S: Final = 25.0
#: Requests of a load. The load is divided into `MIN_ROUNDS` parts, because a confidence interval
#: needs at least so many samples.
REQUESTS: Final = MIN_ROUNDS * 100
QUICK_REQUESTS: Final = MIN_ROUNDS * 20
_FREEZE_S: Final = 5.0
_START_S: Final = 90.0
_END_S: Final = 900.0
_STOP_S: Final = 30.0
_WARM_STEPS: Final = 5
_STEPS: Final = 25


@dataclass(frozen=True, slots=True)
class JobTimes:
    """Times of two jobs, in seconds.

    Attributes:
        makespan_s: from the first submission to the last end.
        pending_s: mean time until a job started.
    """

    makespan_s: float
    pending_s: float


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """Times of the service.

    Attributes:
        alone_ms: milliseconds of each request without jobs.
        shared_ms: the same while jobs use both slots.
        reserved_ms: the same on a slot that is reserved for the service.
        yielded_s: seconds from the reservation until the slot was free.
    """

    alone_ms: Sequence[float]
    shared_ms: Sequence[float]
    reserved_ms: Sequence[float]
    yielded_s: float

    @property
    def ratio(self) -> Estimate:
        """Ratio of p99 on the reserved slot to p99 alone: one sample for each part of the load."""
        parts = zip(_parts(self.reserved_ms), _parts(self.alone_ms), strict=True)
        ratios = [quantile(reserved, 0.99) / quantile(alone, 0.99) for reserved, alone in parts]
        return Estimate.of(ratios)


@dataclass(frozen=True, slots=True)
class BenchmarkSetup:
    """URL of Redis, its queue and job boards, a folder, and the cores of each slot."""

    url: str
    queue: QueueBoard
    board: JobBoard
    folder: Path
    cores: tuple[tuple[int, ...], ...]


def run(quick: bool) -> BenchmarkReport:
    """Measure both ways of scheduling, and the service.

    Args:
        quick: less work and fewer requests.

    Raises:
        UsageError: there are fewer cores than slots.
    """
    cores = divide_cores(available_cores(), SLOTS)
    if not all(cores):
        raise UsageError(f"this benchmark needs {SLOTS} cores, one for each of its slots")
    work_s = QUICK_WORK_S if quick else WORK_S
    with _setup(cores) as setup:
        step_s = _step_s(setup)
        steps = (round(work_s / step_s), round(B_WORK_FACTOR * work_s / step_s))
        log.info("a step takes %.0f ms: A has %d steps, B %d", step_s * 1000, *steps)
        gang = _two_jobs(setup, "gang", steps)
        elastic = _two_jobs(setup, "elastic", steps)
        served = _service(setup, QUICK_REQUESTS if quick else REQUESTS)
    return report(gang, elastic, served)


def report(gang: JobTimes, elastic: JobTimes, served: ServiceTimes) -> BenchmarkReport:
    """Make the report."""
    return BenchmarkReport(
        _rows(gang, elastic, served),
        [
            Goal.judge(name, value, "<=", limit)
            for name, value, limit in (
                ("makespan, elastic / gang", elastic.makespan_s / gang.makespan_s, MAKESPAN),
                ("mean pending, elastic / gang", elastic.pending_s / gang.pending_s, PENDING),
                ("s until the slot is back", served.yielded_s, YIELD_S),
                ("service p99, slot back / alone", served.ratio, P99),
            )
        ],
    )


def _rows(gang: JobTimes, elastic: JobTimes, served: ServiceTimes) -> list[Row]:
    figures = {
        "makespan, gang": (gang.makespan_s, "s"),
        "makespan, elastic": (elastic.makespan_s, "s"),
        "mean pending time, gang": (gang.pending_s, "s"),
        "mean pending time, elastic": (elastic.pending_s, "s"),
        "service p99, alone": (quantile(served.alone_ms, 0.99), "ms"),
        "service p99, jobs on both slots": (quantile(served.shared_ms, 0.99), "ms"),
        "service p99, its slot back": (quantile(served.reserved_ms, 0.99), "ms"),
        "until it had its slot": (served.yielded_s, "s"),
    }
    return [
        {"figure": name, "value": round(value, 3), "unit": unit}
        for name, (value, unit) in figures.items()
    ]


# --- Redis, fleet and jobs


@contextmanager
def _setup(cores: tuple[tuple[int, ...], ...]) -> Iterator[BenchmarkSetup]:
    """Run a Redis on the cores of the first slot, as the service first runs on those of the second.

    Later the service runs on the slot that it has reserved.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edl-bench-")))
        with on_cores(cores[0]):
            redis, url = start_embedded()
        stack.callback(redis.stop)
        queue, board = open_queue(url), open_job_board(url)
        stack.enter_context(closing(queue))
        stack.enter_context(closing(board))
        yield BenchmarkSetup(url, queue, board, folder, cores)


@contextmanager
def fleet(redis: str, folder: Path, *, mode: Mode, slots: int, freeze_s: float) -> Iterator[None]:
    """Run a fleet while the body runs; stopping it stops its nodes.

    Args:
        redis: URL of its Redis.
        folder: folder for its log, and for the files of its jobs.
        mode: how the fleet shares its slots.
        slots: number of slots.
        freeze_s: seconds after a change for which a job keeps its nodes, unless it must make room.

    Raises:
        ProcessFailed: it does not start.
    """
    command = python_command(
        "fleet", "edl", "agent", "jobs", "--slots", slots,
        "--share", f"mode={mode},freeze={freeze_s}", "--folder", folder / mode,
        "--redis", redis, log=folder / "fleet.log", isolated=True,
    )  # fmt: skip
    process = start(command, echo=lambda line: log.debug("fleet: %s", line))
    try:
        process.expect("runs jobs on", _START_S)
        yield
    finally:
        process.stop(grace_s=_STOP_S)


def _fleet(setup: BenchmarkSetup, mode: Mode) -> AbstractContextManager[None]:
    return fleet(setup.url, setup.folder, mode=mode, slots=SLOTS, freeze_s=_FREEZE_S)


def _spec(name: str, steps: int, least: int, most: int) -> QueuedJobSpec:
    job_file = Path(__file__).with_name("jobs") / "pictures.py"
    return QueuedJobSpec(
        name,
        f"'{job_file}' --steps {steps}",
        min_nodes=least,
        max_nodes=most,
        folder=job_file.parent,
    )


def _step_s(setup: BenchmarkSetup) -> float:
    """Measure the seconds of a step on one slot."""
    with ExitStack() as stack, on_cores(setup.cores[1]):
        return float(Child(stack, "the steps", time_steps).receive()["step_s"])


def time_steps(channel: Channel) -> None:
    """Train on one batch; the only message to the benchmark has the median seconds of a step."""
    import paddle

    from .jobs import pictures as job

    network = job.model()
    optimizer = job.optimizer(network.parameters())
    data = job.Pictures()
    rows = [data[number] for number in range(job.BATCH)]
    took = []
    for _ in range(_WARM_STEPS + _STEPS):
        began_s = time.perf_counter()
        pictures = paddle.to_tensor(np.stack([picture for picture, _ in rows]))
        classes = paddle.to_tensor(np.array([label for _, label in rows]))
        job.loss(network(pictures), classes).backward()
        optimizer.step()
        optimizer.clear_grad()
        took.append(time.perf_counter() - began_s)
    channel.send("timed", step_s=statistics.median(took[_WARM_STEPS:]))


# --- two jobs


def _two_jobs(setup: BenchmarkSetup, mode: Mode, steps: tuple[int, int]) -> JobTimes:
    names = (f"a-{mode}", f"b-{mode}")
    with _fleet(setup, mode):
        for name, count, most in zip(names, steps, (1, SLOTS), strict=True):
            setup.queue.submit(name, _spec(name, count, 1, most).to_json())
        jobs = _ended(setup, names)
    began_ms = min(job.submitted_ms for job in jobs)
    return JobTimes(
        (max(job.progress.ended_ms for job in jobs) - began_ms) / 1000,
        sum(job.pending_s(0) for job in jobs) / len(jobs),
    )


def _ended(setup: BenchmarkSetup, names: Sequence[str]) -> list[QueuedJob]:
    """Wait until all jobs have succeeded; return them.

    Raises:
        ProcessFailed: a job failed or was stopped, or they took longer than `_END_S`.
    """
    began_s = time.monotonic()
    reported: dict[str, str] = {}
    while (after_s := time.monotonic() - began_s) < _END_S:
        jobs = [_job(setup, name) for name in names]
        for job in jobs:
            state = f"{job.progress.state}, {job.progress.running} nodes"
            if state != reported.get(job.name):
                log.info("%5.1f s: %s %s", after_s, job.name, state)
                reported[job.name] = state
            if job.progress.state in ("failed", "stopped"):
                raise ProcessFailed(f"{job.name} {state}: {job.progress.reason}")
        if all(job.progress.ended for job in jobs):
            return jobs
        time.sleep(0.25)
    raise ProcessFailed(f"the jobs of the benchmark did not end in {_END_S:g} s: {reported}")


def _job(setup: BenchmarkSetup, name: str) -> QueuedJob:
    return next(job for job in setup.queue.jobs() if job.name == name)


# --- the service


def _service(setup: BenchmarkSetup, requests: int) -> ServiceTimes:
    core = setup.cores[1]
    with _fleet(setup, "elastic"):
        alone = _times_ms(core, requests)
        log.info("the service alone: p99 %.1f ms", quantile(alone, 0.99))
        setup.queue.submit("c", _spec("c", 1 << 20, 1, SLOTS).to_json())
        _wait("two nodes train", lambda: progress_or_unknown(setup.board, "c", SLOTS).steady)
        shared = _times_ms(core, QUICK_REQUESTS)
        log.info("with jobs on both slots: p99 %.1f ms", quantile(shared, 0.99))
        words = ("reserve", 1, "--name", "web", "--redis", setup.url)
        reserve = start(python_command("reserve", "edl", *words, isolated=True))
        try:
            free = reserve.expect(r"slot (\d+)\b.* free after ([\d.]+) s", _START_S)
            # `yielded_s` does not include the start of the command.
            slot, yielded_s = int(free[1]), float(free[2])
            log.info("slot %d is free after %.1f s", slot, yielded_s)
            reserved = _times_ms(setup.cores[slot], requests)
            log.info("on its reserved slot: p99 %.1f ms", quantile(reserved, 0.99))
        finally:
            reserve.stop()
        setup.queue.set_desired_state("c", DesiredJobState(stop=True))
        _wait("the job ends", lambda: _job(setup, "c").progress.ended)
    return ServiceTimes(alone, shared, reserved, yielded_s)


def _parts(times: Sequence[float]) -> Iterator[Sequence[float]]:
    size = len(times) // MIN_ROUNDS
    return (times[n * size : (n + 1) * size] for n in range(MIN_ROUNDS))


def _times_ms(cores: tuple[int, ...], requests: int) -> list[float]:
    """Run the service and its load on `cores`; return the milliseconds of each request."""
    with ExitStack() as stack:
        with on_cores(cores):
            port = Child(stack, "the web service", web.serve).receive()["port"]
            load = Child(stack, "the load", web.load, port, PER_S, requests)
        times: list[float] = load.receive()["times_ms"]
    return times


def _wait(what: str, condition: Callable[[], bool]) -> None:
    if not wait_until(condition, _START_S, 0.1):
        raise ProcessFailed(f"this did not happen within {_START_S:g} s: {what}")

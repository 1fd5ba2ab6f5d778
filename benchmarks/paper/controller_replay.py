"""The experiment of EDL's controller with 20 live jobs on this machine, ten times as fast.

Nodes sleep instead of computing, so that a small machine can run all of them. The measurement is
how long a job waits for its first node, and how many of the slots are taken.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...coordinator.embedded import start_embedded
from ...coordinator.job_queue import DesiredJobState, QueueBoard, open_queue
from ...mesh.jobs.spec import QueuedJobSpec
from ...runtime.errors import ProcessFailed
from ..elastic import Mode, fleet
from ..report import BenchmarkReport, Goal

MAX_NODES: Final = 4
#: As in the experiment, six jobs with all their nodes fill the slots, and 20 jobs fit in with one
#: node each.
SLOTS: Final = 6 * MAX_NODES
SUBMITTED_EVERY_S: Final = 1.0
AFTER_ALL_S: Final = 30.0
#: Goals: the greatest ratio of pending times and the least ratio of loads, elastic to gang.
PENDING: Final = 0.2
LOAD: Final = 0.98
_SAMPLE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class PassResult:
    """The result of one pass.

    Attributes:
        pending_s: mean seconds from the submission of a job to its first node, or to the end of the
            pass if it had none.
        load: mean share of the slots that were taken, weighted by time.
        trained: jobs that had a node.
    """

    pending_s: float
    load: float
    trained: int


def measure(quick: bool) -> BenchmarkReport:
    """Measure gang and elastic scheduling, one after the other.

    Args:
        quick: ten jobs, and less time.
    """
    jobs, after_s = (10, 8.0) if quick else (20, AFTER_ALL_S)
    every_s = SUBMITTED_EVERY_S / (2 if quick else 1)
    passes = {mode: replay(mode, jobs, every_s, after_s) for mode in ("gang", "elastic")}
    gang, elastic = passes["gang"], passes["elastic"]
    return BenchmarkReport(
        [
            {
                "sharing": mode,
                "jobs": jobs,
                "mean pending, s": round(result.pending_s, 2),
                "slots taken, %": round(100 * result.load, 1),
                "jobs that had a node": result.trained,
            }
            for mode, result in passes.items()
        ],
        [
            Goal.judge(
                "mean pending, elastic / gang", elastic.pending_s / gang.pending_s, "<=", PENDING
            ),
            Goal.judge("slots taken, elastic / gang", elastic.load / gang.load, ">=", LOAD),
            Goal.judge("jobs that had a node, elastic", elastic.trained, "==", jobs),
        ],
    )


def replay(
    mode: Mode, jobs: int, every_s: float, after_s: float, *, until_trained: bool = False
) -> PassResult:
    """Run one pass on its own fleet.

    Args:
        mode: mode of the fleet.
        jobs: number of jobs.
        every_s: seconds between two submissions.
        after_s: all jobs are stopped `every_s + after_s` seconds after the last submission.
        until_trained: stop the jobs earlier, once each has had a node.

    Raises:
        ProcessFailed: a process could not be started, or a job ended unexpectedly.
    """
    with _queue(mode) as queue:
        began_s = time.monotonic()
        submitted, slot_s, sampled_s = 0, 0.0, began_s
        while (spent_s := time.monotonic() - began_s) < jobs * every_s + after_s:
            while submitted < jobs and spent_s >= submitted * every_s:
                _submit(queue, submitted)
                submitted += 1
            now_s = time.monotonic()
            queued = queue.jobs()
            running = sum(job.progress.running for job in queued)
            slot_s += running * (now_s - sampled_s)
            sampled_s = now_s
            if until_trained and sum(job.progress.first_ms > 0 for job in queued) == jobs:
                break
            time.sleep(_SAMPLE_S)
        queued, now_ms = queue.jobs(), queue.time_ms()
        for job in queued:
            if job.progress.ended:
                raise ProcessFailed(f"{job.name} {job.progress.state}: {job.progress.reason}")
            queue.set_desired_state(job.name, DesiredJobState(stop=True))
        return PassResult(
            sum(job.pending_s(now_ms) for job in queued) / jobs,
            slot_s / (sampled_s - began_s) / SLOTS,
            sum(job.progress.first_ms > 0 for job in queued),
        )


def _submit(queue: QueueBoard, number: int) -> None:
    spec = QueuedJobSpec(
        f"job{number:02d}", command="sleep 3600", max_nodes=MAX_NODES, folder=Path("/")
    )
    queue.submit(spec.name, spec.to_json())


@contextmanager
def _queue(mode: Mode) -> Iterator[QueueBoard]:
    """Run a Redis and a fleet while the body runs."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edl-bench-")))
        redis, url = start_embedded()
        stack.callback(redis.stop)
        queue = stack.enter_context(closing(open_queue(url)))
        stack.enter_context(fleet(url, folder, mode=mode, slots=SLOTS, freeze_s=0))
        yield queue

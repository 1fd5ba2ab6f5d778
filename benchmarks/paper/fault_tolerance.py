"""Failed long jobs with fail-over and without, under a stated rate of failures."""

from __future__ import annotations

import random
from math import exp, log
from typing import Final

from .. import elastic_simulation as virtual
from ..elastic_simulation import Failure, SimulatedJob, SimulatedJobRun
from .experiment import Cell, Experiment, Key, Outcome

_ABSTRACT: Final = "End-to-end Adaptive Distributed Training on PaddlePaddle, abstract"
#: Published reduction of the number of failed long jobs by fail-over and elasticity.
REDUCTION: Final = 0.3449

#: Assumptions, as the paper does not describe its jobs: 8 nodes for 5 days; each node fails every
#: 200 days; an hour between checkpoints; 2 minutes until a new node is ready, 1 minute to continue.
NODES: Final = 8
DAY_S: Final = 86400.0
WORKS_S: Final = 5 * DAY_S
NODE_BREAKS_EVERY_S: Final = 200 * DAY_S
FAILURES: Final = NODES * WORKS_S / NODE_BREAKS_EVERY_S
CHECKPOINT_S: Final = 3600.0
ANOTHER_NODE_S: Final = 120.0
REFORM_S: Final = 60.0
SEED: Final = 20211206

_ROW: Final = "jobs of 8 nodes and 5 days"

EXPERIMENT: Final = Experiment(
    name="fault_tolerance",
    title="Failed long jobs with fail-over and without",
    source=_ABSTRACT,
    setting=(
        "The paper states one figure, from production: fail-over and elasticity lower the number of"
        " failed long-term jobs by 34.49 %. It says neither how long the jobs are nor how often"
        " something breaks. Assumed here: 8 nodes for 5 days, a node that breaks every 200 days, so"
        " 0.2 failures in a job; without fail-over the first one ends it."
    ),
    calibration=(
        "The one figure gives p, the share of failures after which another node can continue: if N"
        " failures are expected in a job, 1 - exp(-N) of all jobs fail without fail-over, and"
        " 1 - exp(-N (1 - p)) with it. So the agreement checks only the simulation, which runs each"
        " job with its checkpoints and restarts."
    ),
    cells=(
        Cell(_ROW, "failed, with / without fail-over", 1 - REDUCTION, "x", "derived", _ABSTRACT),
    ),
    min_free_cells=0,
)


def recoverable(failures: float, reduction: float) -> float:
    """Return the share of failures that must be recoverable for a reduction of failed jobs.

    Args:
        failures: expected failures in a job that survives them (> 0).
        reduction: reduction of the number of failed jobs, 0..1.
    """
    fails = (1 - reduction) * (1 - exp(-failures))
    return 1 + log(1 - fails) / failures


def reduction(failures: float, share: float) -> float:
    """Return the reduction of failed jobs by fail-over, 0..1: the inverse of `recoverable`."""
    return 1 - (1 - exp(-failures * (1 - share))) / (1 - exp(-failures))


def run(failures: tuple[Failure, ...], fail_over: bool) -> SimulatedJobRun:
    """Simulate one job with these failures, alone in its pool."""
    job = SimulatedJob(
        "job",
        NODES * WORKS_S,
        min_nodes=NODES,
        max_nodes=NODES,
        join_s=ANOTHER_NODE_S,
        reform_s=REFORM_S,
        failures=failures,
        fail_over=fail_over,
        checkpoint_s=CHECKPOINT_S,
    )
    pool = virtual.SimulatedPool({"slots": NODES}, decide_every_s=1e9)
    return virtual.simulate(pool, [job], until_s=1e9).runs[0]


def draw_failures(rng: random.Random, share: float) -> tuple[Failure, ...]:
    """Draw the failures of a job, for twice its length: restarts make the job longer.

    Args:
        rng: source of randomness.
        share: share of the failures that are recoverable, 0..1.
    """
    failures = []
    at_s = rng.expovariate(NODES / NODE_BREAKS_EVERY_S)
    while at_s < 2 * WORKS_S:
        failures.append(Failure(at_s, rng.random() < share))
        at_s += rng.expovariate(NODES / NODE_BREAKS_EVERY_S)
    return tuple(failures)


def simulate(quick: bool) -> Outcome:
    """Simulate thousands of jobs, each with the same failures with fail-over and without.

    Args:
        quick: a fifth of the jobs.
    """
    jobs = 1000 if quick else 5000
    share = recoverable(FAILURES, REDUCTION)
    rng = random.Random(SEED)
    without: list[SimulatedJobRun] = []
    with_it: list[SimulatedJobRun] = []
    for _ in range(jobs):
        failures = draw_failures(rng, share)
        without.append(run(failures, fail_over=False))
        with_it.append(run(failures, fail_over=True))
    failed_without, failed_with = (
        sum(job.state == "failed" for job in runs) for runs in (without, with_it)
    )
    ratio = failed_with / failed_without
    values: dict[Key, float] = {(_ROW, "failed, with / without fail-over"): ratio}
    shares = [i / 20 for i in range(21)]
    series: dict[str, list[float]] = {"share of failures that are recoverable": shares}
    for expected in (0.05, FAILURES, 1.0, 3.0):
        name = f"{expected:g} failures in a job, % fewer failed jobs"
        series[name] = [100 * reduction(expected, recovered) for recovered in shares]
    return Outcome(
        values,
        {
            "failures expected in a job": FAILURES,
            "share of them that must be recoverable, %": 100 * share,
            "jobs simulated": float(jobs),
            "failed without fail-over, %": 100 * failed_without / jobs,
            "failed with fail-over, %": 100 * failed_with / jobs,
        },
        series,
        (
            "34.49 % fewer jobs fail if another node can continue after this share of the failures:"
            f" {100 * share:.1f} % at 0.2 failures in a job,"
            f" {100 * recoverable(1.0, REDUCTION):.1f} % at 1,"
            f" {100 * recoverable(3.0, REDUCTION):.1f} % at 3, and 34.5 % if failures are rare. The"
            " other failures are the job's own: its code, its data, too little memory.",
            _costs(without, with_it),
        ),
    )


def _costs(without: list[SimulatedJobRun], with_it: list[SimulatedJobRun]) -> str:
    """Describe the cost of failures in node days, in a sentence."""
    wasted_without, wasted_with = (
        sum((run.ended_s or 0.0) * NODES for run in runs if run.state == "failed")
        for runs in (without, with_it)
    )
    repeated = sum(run.lost_node_s for run in with_it)
    restarts = sum(run.restarts for run in with_it)
    day_per_job = DAY_S * len(without)
    return (
        f"Failed jobs waste {wasted_without / day_per_job:.2f} node days per job without fail-over,"
        f" and {wasted_with / day_per_job:.2f} with it. {restarts} restarts with fail-over also"
        f" repeat {repeated / day_per_job:.4f} node days per job, from the last checkpoint on."
    )

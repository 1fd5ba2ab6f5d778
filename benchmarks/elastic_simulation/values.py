"""Inputs and results of a simulation of elastic jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from ...scheduler.elastic_values import SLOTS, ElasticConfig

State = Literal["waiting", "running", "succeeded", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure of a node of a job.

    Attributes:
        at_s: virtual time; without effect while the job has no working node.
        recoverable: whether another node can continue; False: a fault of the job itself, which
            would recur on any node.
    """

    at_s: float
    recoverable: bool = True


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A job of a simulation. Times are virtual.

    Attributes:
        name: unique name.
        work_node_s: its work, in seconds of one node (> 0).
        min_nodes: fewest nodes with which it runs.
        max_nodes: most nodes that it can use.
        needs: amount of each kind of resource that a node holds.
        base: amount that the job holds in addition while it has nodes.
        priority: jobs of higher priority get nodes first.
        submitted_s: time of the submission.
        start_s: seconds from the order to run until its first nodes work.
        join_s: seconds from the order to grow until more nodes work.
        leave_s: seconds for which a leaving node still holds its resources.
        reform_s: seconds for which the whole job pauses when its working nodes change.
        stop_s: time at which its owner stops it if it has not ended.
        failures: failures of its nodes.
        fail_over: whether it survives recoverable failures; False: the first failure ends it.
        checkpoint_s: seconds of running time between two checkpoints; a failure loses the work
            since the last one. 0: nothing is lost.
    """

    name: str
    work_node_s: float
    min_nodes: int
    max_nodes: int
    needs: Mapping[str, float] = field(default_factory=lambda: {SLOTS: 1})
    base: Mapping[str, float] = field(default_factory=dict)
    priority: int = 0
    submitted_s: float = 0.0
    start_s: float = 0.0
    join_s: float = 0.0
    leave_s: float = 0.0
    reform_s: float = 0.0
    stop_s: float = inf
    failures: tuple[Failure, ...] = ()
    fail_over: bool = True
    checkpoint_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.work_node_s > 0:
            raise ValueError(f"job {self.name!r}: work_node_s must be above 0")
        spans = (self.start_s, self.join_s, self.leave_s, self.reform_s, self.checkpoint_s)
        if not min(*spans, self.submitted_s) >= 0:
            raise ValueError(f"job {self.name!r}: times must be 0 or more")
        if not self.stop_s > self.submitted_s:
            raise ValueError(f"job {self.name!r}: stop_s must be after submitted_s")


@dataclass(frozen=True, slots=True)
class ResourceReservation:
    """Amounts of each kind of resource that online services hold from `from_s` on."""

    from_s: float
    amounts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SimulatedPool:
    """The resources of a simulation, and the settings of the rule.

    Attributes:
        capacity: amount of each kind of resource.
        reservations: amounts that online services hold, each until the next; in the order of time.
        config: settings of the rule.
        decide_every_s: seconds between decisions, in addition to those at events (> 0).
    """

    capacity: Mapping[str, float]
    reservations: tuple[ResourceReservation, ...] = ()
    config: ElasticConfig = field(default_factory=ElasticConfig)
    decide_every_s: float = 1.0

    def __post_init__(self) -> None:
        if not self.decide_every_s > 0:
            raise ValueError(f"decide_every_s must be above 0, got {self.decide_every_s}")


@dataclass(frozen=True, slots=True)
class SimulatedJobRun:
    """The run of one job.

    Attributes:
        job: the job.
        state: state at the end of the simulation.
        started_s: virtual time at which its first nodes began to work; None: never.
        ended_s: virtual time at which it ended or was stopped; None: it did not end.
        changes: changes of its working nodes after the start.
        restarts: failures after which it continued.
        lost_node_s: work that was lost by failures, in seconds of one node.
    """

    job: SimulatedJob
    state: State
    started_s: float | None
    ended_s: float | None
    changes: int
    restarts: int
    lost_node_s: float

    def pending_s(self, until_s: float) -> float:
        """Return the seconds from submission until it started, else ended, else `until_s`."""
        ends = [t for t in (self.started_s, self.ended_s, until_s) if t is not None]
        return max(0.0, ends[0] - self.job.submitted_s)


@dataclass(frozen=True, slots=True)
class PoolState:
    """The state of the pool from `at_s` until the next recorded state.

    Attributes:
        at_s: virtual seconds.
        working: job -> working nodes; jobs without working nodes are absent.
        held: kind of resource -> amount that jobs hold, working or not.
        reserved: kind -> amount that online services have: their reservation, less the part that
            jobs have not released yet.
        waiting: jobs that are submitted and have neither started nor ended.
    """

    at_s: float
    working: Mapping[str, int]
    held: Mapping[str, float]
    reserved: Mapping[str, float]
    waiting: int


@dataclass(frozen=True, slots=True)
class Simulation:
    """The result of a simulation.

    Attributes:
        runs: the run of each job, in the given order.
        moments: states of the pool, in the order of time.
        capacity: capacity of the pool.
        until_s: virtual time of the end.
    """

    runs: tuple[SimulatedJobRun, ...]
    moments: tuple[PoolState, ...]
    capacity: Mapping[str, float]
    until_s: float

    def run(self, name: str) -> SimulatedJobRun:
        """Return the run of the job `name`.

        Raises:
            KeyError: there is no such job.
        """
        for run in self.runs:
            if run.job.name == name:
                return run
        raise KeyError(name)

    def makespan_s(self) -> float:
        """Return the seconds from the first submission until all jobs, or the simulation, ended."""
        ends = [self.until_s if run.ended_s is None else run.ended_s for run in self.runs]
        return max(ends) - min(run.job.submitted_s for run in self.runs)

    def mean_pending_s(self) -> float:
        """Return the mean waiting time of all jobs, in seconds."""
        return sum(run.pending_s(self.until_s) for run in self.runs) / len(self.runs)

    def load(self, kind: str, from_s: float, to_s: float) -> float:
        """Return the mean share of a resource that jobs and services hold, weighted by time.

        Args:
            kind: kind of resource.
            from_s: start of the interval, in virtual seconds.
            to_s: end of the interval.

        Raises:
            ValueError: the interval is empty.
        """
        if not from_s < to_s:
            raise ValueError(f"needs an interval, not {from_s}..{to_s} s")
        total = 0.0
        ends = [m.at_s for m in self.moments[1:]] + [inf]
        for moment, end in zip(self.moments, ends, strict=True):
            span = min(end, to_s) - max(moment.at_s, from_s)
            if span > 0:
                total += span * (moment.held.get(kind, 0.0) + moment.reserved.get(kind, 0.0))
        return total / ((to_s - from_s) * self.capacity[kind])

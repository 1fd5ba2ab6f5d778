"""What a simulation of elastic jobs is made of, and what it finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from ...scheduler.elastic_values import SLOTS, ElasticConfig

State = Literal["waiting", "running", "succeeded", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A node of a job breaks.

    Attributes:
        at_s: when, in virtual seconds; without effect while the job has no working node.
        recoverable: whether another node could go on; False: a fault of the job itself, which
            comes back wherever it runs.
    """

    at_s: float
    recoverable: bool = True


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """One job.

    Attributes:
        name: unique.
        work_node_s: its work, in seconds of one node (> 0).
        min_nodes: fewest nodes that it runs with.
        max_nodes: most that it has a use for.
        needs: what a node holds of each kind of resource.
        base: what the job holds besides as long as it has nodes.
        priority: higher goes first.
        submitted_s: when it comes.
        start_s: from the order to run until its first nodes work.
        join_s: from the order to grow until further nodes work.
        leave_s: a node that was told to leave holds its place for so long.
        reform_s: the whole job stands still for so long whenever its working nodes change.
        scaling: n nodes work n ** scaling times as fast as one (0..1].
        stop_s: when its owner takes it away, done or not.
        failures: what breaks; without effect while it has no working node.
        fail_over: whether it survives what is recoverable; False: the first failure ends it.
        checkpoint_s: seconds of the job's running time between two checkpoints; what was done
            since the last one is lost with a node. 0: nothing is lost.
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
    scaling: float = 1.0
    stop_s: float = inf
    failures: tuple[Failure, ...] = ()
    fail_over: bool = True
    checkpoint_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.work_node_s > 0:
            raise ValueError(f"job {self.name!r}: work_node_s must be above 0")
        spans = (self.start_s, self.join_s, self.leave_s, self.reform_s, self.checkpoint_s)
        if not min(spans) >= 0 or not 0 < self.scaling <= 1 or not self.submitted_s >= 0:
            raise ValueError(f"job {self.name!r}: times must be 0 or more, and scaling in (0, 1]")
        if not self.stop_s > self.submitted_s:
            raise ValueError(f"job {self.name!r}: stop_s must be after submitted_s")


@dataclass(frozen=True, slots=True)
class ResourceReservation:
    """What online services hold from some moment on, of each kind of resource."""

    from_s: float
    amounts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SimulatedPool:
    """What the jobs run on.

    Attributes:
        capacity: what there is of each kind.
        reservations: what online services hold, each until the next; in the order of time.
        config: the rule's settings.
        decide_every_s: the rule is asked at every event and so often besides (> 0).
        prompt: False: it is asked every `decide_every_s` only.
    """

    capacity: Mapping[str, float]
    reservations: tuple[ResourceReservation, ...] = ()
    config: ElasticConfig = field(default_factory=ElasticConfig)
    decide_every_s: float = 1.0
    prompt: bool = True

    def __post_init__(self) -> None:
        if not self.decide_every_s > 0:
            raise ValueError(f"decide_every_s must be above 0, got {self.decide_every_s}")


@dataclass(frozen=True, slots=True)
class SimulatedJobRun:
    """How one job fared.

    Attributes:
        job: what it was.
        state: at the end.
        started_s: when its first nodes worked; None: never.
        ended_s: when it ended or was stopped; None: it had not by the end of the simulation.
        changes: how often its working nodes changed after the start.
        restarts: how often it went on after a failure.
        lost_node_s: work that was done again, in seconds of one node.
    """

    job: SimulatedJob
    state: State
    started_s: float | None
    ended_s: float | None
    changes: int
    restarts: int
    lost_node_s: float

    def pending_s(self, until_s: float) -> float:
        """How long it waited: until it started, was stopped, or until `until_s`."""
        ends = [t for t in (self.started_s, self.ended_s, until_s) if t is not None]
        return max(0.0, ends[0] - self.job.submitted_s)


@dataclass(frozen=True, slots=True)
class Moment:
    """What held from `at_s` until the next moment.

    Attributes:
        at_s: virtual seconds.
        working: nodes at work, by job; jobs without are absent.
        held: what jobs hold of each kind, working or not.
        reserved: what online services have of each kind: what they want, as far as jobs have let
            it go.
        waiting: jobs that were submitted, have not started and have not ended.
    """

    at_s: float
    working: Mapping[str, int]
    held: Mapping[str, float]
    reserved: Mapping[str, float]
    waiting: int


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a simulation found.

    Attributes:
        runs: one for each job, in the order given.
        moments: how it went, in the order of time.
        capacity: of the pool.
        until_s: when it ended.
    """

    runs: tuple[SimulatedJobRun, ...]
    moments: tuple[Moment, ...]
    capacity: Mapping[str, float]
    until_s: float

    def run(self, name: str) -> SimulatedJobRun:
        """How the job of this name fared.

        Raises:
            KeyError: there is none.
        """
        for run in self.runs:
            if run.job.name == name:
                return run
        raise KeyError(name)

    def makespan_s(self) -> float:
        """From the first submission until the last job ended."""
        ends = [self.until_s if run.ended_s is None else run.ended_s for run in self.runs]
        return max(ends) - min(run.job.submitted_s for run in self.runs)

    def mean_pending_s(self) -> float:
        """The mean over all jobs of how long they waited."""
        return sum(run.pending_s(self.until_s) for run in self.runs) / len(self.runs)

    def load(self, kind: str, from_s: float, to_s: float) -> float:
        """The mean share of a kind that jobs and services hold in an interval, weighted by time.

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

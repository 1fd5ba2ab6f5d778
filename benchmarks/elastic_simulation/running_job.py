"""State of one simulated job: nodes that start, work, fail and leave, and the work done."""

from __future__ import annotations

from math import inf, ulp

from ...scheduler.elastic_values import ElasticJob, resources_of
from .values import SimulatedJob, SimulatedJobRun, State

#: Events within so many seconds count as simultaneous.
_TOLERANCE_S = 1e-9
#: Remaining work of fewer seconds counts as done: it is a rounding error.
_ROUNDING_S = 1e-6


class RunningJob:
    """A job during a simulation. Times of calls must not decrease.

    Attributes:
        started_s: virtual time at which its first nodes began to work; None: not yet.
        working: nodes that work.
    """

    def __init__(self, job: SimulatedJob) -> None:
        self._job = job
        self._state: State = "waiting"
        self._ordered = 0
        self._starting: list[float] = []
        self._leaving: list[float] = []
        self._paused_until_s = 0.0
        self._done = 0.0
        self._saved = 0.0
        self._since_saved_s = 0.0
        self._failures = sorted(job.failures, key=lambda failure: failure.at_s)
        self._ended_s: float | None = None
        self._changes = 0
        self._restarts = 0
        self._lost = 0.0
        self.started_s: float | None = None
        self.working = 0

    @property
    def name(self) -> str:
        return self._job.name

    @property
    def over(self) -> bool:
        """Whether the job has ended and all its nodes have left."""
        return self._ended_s is not None and not self._leaving

    def present(self, now: float) -> bool:
        """Whether the job is submitted and has not ended: the rule decides only about such jobs."""
        return self._ended_s is None and self._job.submitted_s <= now

    def held(self) -> dict[str, float]:
        """Return the amount that the job holds of each kind of resource."""
        view = ElasticJob(
            self.name,
            self._job.min_nodes,
            self._job.max_nodes,
            needs=self._job.needs,
            base=self._job.base,
        )
        return resources_of(view, self._ordered + len(self._leaving))

    def view(self, now: float) -> ElasticJob:
        """Return the job as input of the rule."""
        job = self._job
        return ElasticJob(
            job.name,
            job.min_nodes,
            job.max_nodes,
            nodes=self._ordered,
            leaving=len(self._leaving),
            needs=job.needs,
            base=job.base,
            priority=job.priority,
            submitted_s=job.submitted_s,
            progress=min(1.0, self._done / job.work_node_s),
            steady=not self._starting and now >= self._paused_until_s - _TOLERANCE_S,
        )

    def order(self, nodes: int, now: float) -> None:
        """Change the number of nodes to `nodes`."""
        if nodes > self._ordered:
            delay = self._job.start_s if self._ordered == 0 else self._job.join_s
            self._starting += [now + delay] * (nodes - self._ordered)
        elif nodes < self._ordered:
            removed = self._ordered - nodes
            # Nodes that do not work yet leave first.
            not_working = min(removed, len(self._starting))
            self._starting = self._starting[: len(self._starting) - not_working]
            self._change(not_working - removed, now)
            self._leaving += [now + self._job.leave_s] * removed
        self._ordered = nodes
        self.settle(now)

    def next_s(self, now: float) -> float:
        """Return when the job's next event is due if no order comes before; infinite: none."""
        if self._ended_s is not None:
            return min(self._leaving, default=inf)
        times = [self._job.submitted_s] if self._job.submitted_s > now else []
        times += [self._job.stop_s, *self._starting, *self._leaving]
        times += [failure.at_s for failure in self._failures[:1]]
        if self._speed() > 0:
            start = max(now, self._paused_until_s)
            times.append(start + (self._job.work_node_s - self._done) / self._speed())
        if self._paused_until_s > now:
            times.append(self._paused_until_s)
        return min(times)

    def advance(self, now: float, to_s: float) -> None:
        """Work from `now` until `to_s`; there must be no event in between."""
        spent = max(0.0, to_s - max(now, self._paused_until_s))
        if self._ended_s is not None or spent == 0 or self._speed() == 0:
            return
        if self._job.checkpoint_s:
            since = self._since_saved_s + spent
            unsaved = since % self._job.checkpoint_s
            if unsaved < since:  # at least one checkpoint was written meanwhile
                self._saved = self._done + self._speed() * max(0.0, spent - unsaved)
            self._since_saved_s = unsaved
        self._done += self._speed() * spent

    def settle(self, now: float) -> None:
        """Apply the events due at `now`: nodes start or leave, failures, the end of the job."""
        self._leaving = [at for at in self._leaving if at > now + _TOLERANCE_S]
        failures = [f for f in self._failures if f.at_s <= now + _TOLERANCE_S]
        del self._failures[: len(failures)]
        if not self.present(now):
            return
        arrived = sum(at <= now + _TOLERANCE_S for at in self._starting)
        if arrived:
            self._starting = [at for at in self._starting if at > now + _TOLERANCE_S]
            self._change(arrived, now)
        for failure in failures:
            if self.working:
                self._fail_node(failure.recoverable, now)
        if self._ended_s is None:
            rounding_s = max(_ROUNDING_S, 4 * ulp(now))  # floats are coarser at later times
            if self.working and self._job.work_node_s - self._done <= self._speed() * rounding_s:
                self._end("succeeded", now)
            elif now >= self._job.stop_s - _TOLERANCE_S:
                self._end("stopped", now)

    def outcome(self) -> SimulatedJobRun:
        return SimulatedJobRun(
            self._job,
            self._state,
            self.started_s,
            self._ended_s,
            self._changes,
            self._restarts,
            self._lost,
        )

    def _speed(self) -> float:
        """Return the work per second, in seconds of one node: n nodes are n times as fast."""
        return float(self.working) if self.working >= self._job.min_nodes else 0.0

    def _change(self, by: int, now: float) -> None:
        """Change the number of working nodes; all but the first change form a new world."""
        if by == 0:
            return
        self.working += by
        if self.started_s is None:
            self.started_s = now
            self._state = "running"
            return
        self._changes += 1
        self._paused_until_s = max(self._paused_until_s, now + self._job.reform_s)

    def _fail_node(self, recoverable: bool, now: float) -> None:
        """Fail a node: another node continues from the last checkpoint, or the job fails."""
        if not (recoverable and self._job.fail_over):
            self._end("failed", now)
            return
        self._restarts += 1
        if self._job.checkpoint_s:
            self._lost += self._done - self._saved
            self._done = self._saved
            self._since_saved_s = 0.0
        self._paused_until_s = max(
            self._paused_until_s, now + self._job.join_s + self._job.reform_s
        )

    def _end(self, state: State, now: float) -> None:
        self._state = state
        self._ended_s = now
        self._ordered = self.working = 0
        self._starting.clear()

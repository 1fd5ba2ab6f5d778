"""The values of a queue of jobs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Final, Self, get_args

from ...scheduler.job_states import ElasticJobState
from ..store.facts import Facts

#: How long what stands in a queue outlives the last sign of operators and runner.
KEEP_S: Final = 7 * 86_400.0
#: Of records of ended jobs, of the timeline, and of a job's log, so many are kept, the last ones.
ENDED_KEPT: Final = 50
EVENTS_KEPT: Final = 400
PIECES_KEPT: Final = 400

STATES: Final[tuple[ElasticJobState, ...]] = get_args(ElasticJobState)
ENDS: Final = frozenset({"succeeded", "failed", "stopped"})


@dataclass(frozen=True, slots=True)
class DesiredJobState:
    """What operators ask of a job beyond its spec.

    Attributes:
        nodes: run with so many at most; None: with as many as its limits allow.
        stop: end it.
    """

    nodes: int | None = None
    stop: bool = False

    def to_json(self) -> Facts:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Facts) -> Self:
        """What `to_json` told; what it does not understand is left out."""
        nodes = value.get("nodes")
        return cls(nodes if isinstance(nodes, int) else None, value.get("stop") is True)


@dataclass(frozen=True, slots=True)
class JobProgress:
    """What the runner says of a job.

    Attributes:
        state: see `scheduler.job_states`.
        target: nodes that it is to have.
        running: nodes that it has, those that are on their way out too.
        reason: why it is as it is, for people; of a failed one with what it printed last.
        first_ms: when it had its least number of nodes for the first time, by the board's clock in
            milliseconds since 1970; 0: it has not yet. What lies before it is its pending time.
        ended_ms: when it ended; 0: it has not.
        failures: nodes of it that ended badly.
        slots: of the fleet's machine, those that its nodes have.
    """

    state: ElasticJobState = "creating"
    target: int = 0
    running: int = 0
    reason: str = ""
    first_ms: int = 0
    ended_ms: int = 0
    failures: int = 0
    slots: tuple[int, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether nothing more will become of it."""
        return self.state in ENDS

    def to_json(self) -> Facts:
        return {**asdict(self), "slots": list(self.slots)}

    @classmethod
    def from_json(cls, value: Facts) -> Self:
        """What `to_json` told; what it does not understand is left out."""
        usual = cls().to_json()
        known = {key: value[key] for key in usual if type(value.get(key)) is type(usual[key])}
        slots = tuple(slot for slot in known.pop("slots", ()) if isinstance(slot, int))
        if known.get("state") not in STATES:
            known.pop("state", None)
        return cls(**known, slots=slots)


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job of the queue.

    Attributes:
        name: its name.
        number: grows with each submission.
        spec: what was submitted.
        submitted_ms: when, by the board's clock.
        wish: what operators ask of it.
        progress: what the runner says of it.
    """

    name: str
    number: int
    spec: Facts = field(default_factory=dict)
    submitted_ms: int = 0
    wish: DesiredJobState = DesiredJobState()
    progress: JobProgress = JobProgress()

    def pending_s(self, now_ms: int) -> float:
        """Seconds from its submission until it first had its least number of nodes, or so far."""
        until_ms = self.progress.first_ms or self.progress.ended_ms or now_ms
        return max(0.0, (until_ms - self.submitted_ms) / 1000)


@dataclass(frozen=True, slots=True)
class Runner:
    """Who runs the jobs of the queue."""

    runner_id: str
    facts: Facts
    expires_in_s: float


@dataclass(frozen=True, slots=True)
class Reservation:
    """Slots that are to be kept free for somebody; `number` grows with each new one."""

    name: str
    slots: int
    number: int
    expires_in_s: float


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the timeline, or a piece of a log; `entry_id` is where reading goes on."""

    entry_id: str
    at_ms: int
    body: Facts

"""What is seen of elastic jobs and their pods, what outlives who looks at them, what is ordered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..elastic import ElasticConfig
from ..job_states import State

#: Of the machine that a pod has: it counts in the pool; it takes nobody any more, but what runs
#: there goes on (cordoned); nothing is heard of it; the pod has none yet.
Machine = Literal["counted", "closed", "silent", "none"]


@dataclass(frozen=True, slots=True)
class PodSeen:
    """One node of a job, as the cluster shows it.

    Attributes:
        number: of this job's nodes; each start has one of its own.
        going: it was told to leave, by whoever.
        ended: its program has ended, or will never run.
        code: the exit code of its program; None: it runs, or the cluster ended it (evicted, its
            machine was lost): that is no fault of the job.
        runs: its program runs.
        ready: and works.
        machine: that it has.
        unplaced_since_s: since when the cluster has said that it can place it nowhere, or not
            begin its program; None: it has not said so.
        said: of an ended one what it printed last, of another one what it waits for.
        lingers: its program has ended, and others beside it in the pod go on.
    """

    number: int
    going: bool = False
    ended: bool = False
    code: int | None = None
    runs: bool = False
    ready: bool = False
    machine: Machine = "none"
    unplaced_since_s: float | None = None
    said: str = ""
    lingers: bool = False

    @property
    def stays(self) -> bool:
        """Whether it is a node that its job has."""
        return not (self.ended or self.going)

    @property
    def leaves(self) -> bool:
        """Whether it was told to leave and is still there; of a silent machine nobody knows."""
        return self.going and not self.ended and self.machine != "silent"


@dataclass(frozen=True, slots=True)
class JobWanted:
    """What is asked of a job.

    Attributes:
        least: with fewer nodes it does not run (>= 1).
        most: more are of no use to it (>= least).
        needs: what one node asks of each kind of resource.
        asked: run with so many at most, by hand; None: nobody has said so.
        priority: higher goes first.
        retries: nodes that may end badly before the job has failed.
        stop: it shall not run (any more).
        trains: its nodes are `edl student train`, whose exit codes are known.
        submitted_s: when it came, on the clock of `now`.
        wrong: why nothing can be started as it says; "": it can.
    """

    least: int = 1
    most: int = 1
    needs: Mapping[str, float] = field(default_factory=dict)
    asked: int | None = None
    priority: int = 0
    retries: int = 3
    stop: bool = False
    trains: bool = False
    submitted_s: float = 0.0
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class Ledger:
    """What of a job has to outlive whoever decides about it: kept with the job itself.

    Attributes:
        target: nodes that it was last ordered to have.
        next_number: of its next node; all below are used up.
        failures: nodes that ended badly.
        done: a node has ended well by itself.
        hopeless: a node has failed as the next one would.
        counted: numbers of ended nodes, still seen, of which note was taken.
        changed_s: when it was last ordered another number of nodes.
        waiting_since_s: since when it has been waiting without nodes.
        started_s: when it had its fewest nodes for the first time.
        ended_s: when it ended.
        retry_s: no node is started before; None: at once.
        fits: so many nodes had a place when the cluster could not place all; None: no limit.
        fits_until_s: until then that is believed.
        unplaced_since_s: since when its fewest nodes have had no place; None: they have run since,
            or the cluster has never failed to place them.
        why: of the last node that ended badly, was ended, or had no place: what happened.
        end: how it ended for good; "": it has not.
    """

    target: int = 0
    next_number: int = 1
    failures: int = 0
    done: bool = False
    hopeless: bool = False
    counted: frozenset[int] = frozenset()
    changed_s: float | None = None
    waiting_since_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None
    retry_s: float | None = None
    fits: int | None = None
    fits_until_s: float = 0.0
    unplaced_since_s: float | None = None
    why: str = ""
    end: Literal["", "succeeded", "failed"] = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a training is, where that is known.

    Attributes:
        share: of its work that is done, 0..1; None: not known.
        steady: all of its nodes are in a world that has made a step.
    """

    share: float | None = None
    steady: bool = True


@dataclass(frozen=True, slots=True)
class JobSeen:
    """One job: its name (unique), what is asked of it, its ledger, its pods, how far it is."""

    name: str
    wanted: JobWanted
    ledger: Ledger = Ledger()
    pods: tuple[PodSeen, ...] = ()
    progress: Progress = Progress()

    @property
    def staying(self) -> list[PodSeen]:
        """Nodes that it has, oldest first."""
        return sorted((pod for pod in self.pods if pod.stays), key=lambda pod: pod.number)


@dataclass(frozen=True, slots=True)
class Happening:
    """Something to tell people of, once.

    Attributes:
        word: what it is, in CamelCase.
        message: in a sentence.
        warns: it is not as it should be.
    """

    word: str
    message: str
    warns: bool = False


@dataclass(frozen=True, slots=True)
class Orders:
    """What is done about one job now: `ledger` is kept first, then pods are touched.

    Attributes:
        job: its name.
        ledger: as it is from now on.
        state: of the job, as its pods were seen.
        reason: why it is so, and has so many nodes: one sentence.
        nodes: that it has, without those that leave.
        ready: of them, those that work.
        leaving: that were told to leave before, and have not ended.
        degraded: what is not as it should be; "": nothing.
        start: numbers of pods to make, all new.
        leave: numbers of pods that are told to leave, at a safe point.
        forget: numbers of ended pods that are not kept (any longer).
        happenings: to tell.
    """

    job: str
    ledger: Ledger
    state: State
    reason: str
    nodes: int = 0
    ready: int = 0
    leaving: int = 0
    degraded: str = ""
    start: tuple[int, ...] = ()
    leave: tuple[int, ...] = ()
    forget: tuple[int, ...] = ()
    happenings: tuple[Happening, ...] = ()


@dataclass(frozen=True, slots=True)
class PodsConfig:
    """How jobs share a cluster.

    Attributes:
        elastic: of the rule that divides it.
        place_within_s: a node that the cluster has been unable to place for so long is given up.
        place_again_s: after that it is asked for again. A job whose fewest nodes had no place
            waits at least as long as it has waited since, up to an hour: each time it asks, jobs of
            lower priority that run leave for it.
        lost_pause_s: before another node is started for one that the cluster ended; twice as long
            for each that was ended before it, with none running since.
        ended_kept: pods that have ended are kept, so many of a job, for their logs.
    """

    elastic: ElasticConfig = field(default_factory=ElasticConfig)
    place_within_s: float = 120.0
    place_again_s: float = 300.0
    lost_pause_s: float = 2.0
    ended_kept: int = 5

    def __post_init__(self) -> None:
        for name in ("place_within_s", "place_again_s", "lost_pause_s", "ended_kept"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}")

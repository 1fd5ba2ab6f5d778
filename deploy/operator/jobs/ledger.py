"""What is seen of elastic jobs and their pods, and what of it has to outlive who looks at them.

Note is taken of pods that have ended, each once; of those that are refused, or have no place.
Nothing here asks the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ....scheduler.backoff import ceiling_s
from ....scheduler.elastic_values import ElasticConfig
from ....scheduler.job_states import ElasticJobState, NodeEndings, ending_of
from ..capacity import Machine


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
class PodLedger:
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
    ledger: PodLedger = PodLedger()
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
    ledger: PodLedger
    state: ElasticJobState
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


_WHY_CHARS = 600
#: Between the end of a node and the start of another one, at most, seconds.
_LONGEST_PAUSE_S = 60.0
#: Before a job whose fewest nodes had no place asks for them again, at most, seconds.
_LONGEST_WAIT_S = 3600.0


def life_of(job: JobSeen, ledger: PodLedger) -> NodeEndings:
    """What has become of a job's nodes."""
    return NodeEndings(job.wanted.retries, ledger.failures, ledger.done, ledger.hopeless)


@dataclass(frozen=True, slots=True)
class Case:
    """One job in the midst of a decision.

    Attributes:
        job: as it was seen.
        ledger: with all that has happened to its pods.
        told: of that.
        held: the cluster cannot place its fewest nodes: it waits, and takes no room.
    """

    job: JobSeen
    ledger: PodLedger
    told: tuple[Happening, ...]
    held: bool

    @property
    def life(self) -> NodeEndings:
        """What has become of its nodes."""
        return life_of(self.job, self.ledger)


def case_of(job: JobSeen, now: float, config: PodsConfig) -> Case:
    """A job, once note was taken of what has happened to its pods."""
    job = replace(job, ledger=_by_our_clock(job.ledger, now, config))
    ledger, told = _note_ends(job, now, config)
    ledger, more = _note_unplaced(job, ledger, now, config)
    held = ledger.fits is not None and ledger.fits < job.wanted.least
    held = held and life_of(job, ledger).grows and not job.wanted.wrong
    if held and ledger.unplaced_since_s is None:
        ledger = replace(ledger, unplaced_since_s=now)
    elif sum(pod.runs for pod in job.staying) >= job.wanted.least:
        ledger = replace(ledger, unplaced_since_s=None)
    return Case(job, ledger, (*told, *more), held)


def _by_our_clock(ledger: PodLedger, now: float, config: PodsConfig) -> PodLedger:
    """Without times that lie further ahead than they can: a clock ahead of ours wrote them."""

    def within(at_s: float | None, ahead_s: float) -> float | None:
        return None if at_s is None else min(at_s, now + ahead_s)

    ledger = replace(
        ledger,
        changed_s=within(ledger.changed_s, 0.0),
        waiting_since_s=within(ledger.waiting_since_s, 0.0),
        retry_s=within(ledger.retry_s, max(_LONGEST_PAUSE_S, config.lost_pause_s)),
        unplaced_since_s=within(ledger.unplaced_since_s, 0.0),
    )
    latest_s = now + _place_again_s(ledger, now, config)
    return replace(ledger, fits_until_s=min(ledger.fits_until_s, latest_s))


def _note_ends(job: JobSeen, now: float, config: PodsConfig) -> tuple[PodLedger, list[Happening]]:
    pods = {pod.number: pod for pod in job.pods}
    told: list[Happening] = []
    # Numbers of pods that are gone are forgotten: a number never comes again.
    ledger = replace(job.ledger, counted=frozenset(n for n in job.ledger.counted if n in pods))
    if ledger.retry_s is not None and now >= ledger.retry_s:
        ledger = replace(ledger, retry_s=None)
    for number in sorted(pods):
        pod = pods[number]
        if not pod.ended or number in ledger.counted:
            continue
        ledger = replace(ledger, counted=ledger.counted | {number})
        if pod.code is None:
            if not pod.going:
                why = f"node {number} was ended: {pod.said or 'nobody says why'}"[:_WHY_CHARS]
                told.append(Happening("NodeLost", why))
                ledger = replace(ledger, retry_s=_later(ledger, now + _pause_s(job, config)))
                ledger = ledger if life_of(job, ledger).broken else replace(ledger, why=why)
            continue
        ending = ending_of(pod.code, pod.going, job.wanted.trains)
        life = life_of(job, ledger).after(ending, pausing=ledger.retry_s is not None)
        ledger = replace(ledger, failures=life.failures, done=life.done, hopeless=life.hopeless)
        if ending in ("failed", "hopeless"):
            last = f"its last lines: {pod.said}" if pod.said else "it said nothing"
            why = f"node {number} ended with exit code {pod.code}; {last}"[:_WHY_CHARS]
            ledger = replace(ledger, why=why, retry_s=_later(ledger, now + life.delay_s))
            told.append(Happening("NodeFailed", why, warns=True))
        elif ending == "done":
            told.append(Happening("NodeDone", f"node {number} has ended well"))
    return ledger, told


def _pause_s(job: JobSeen, config: PodsConfig) -> float:
    """Before another node is started for one that the cluster ended.

    Longer where those before it were ended too, and none has come to run since: a machine that
    takes pods and refuses them would be sent one after another.
    """
    newest = max((pod.number for pod in job.staying if pod.runs), default=0)
    before = sum(
        pod.ended and pod.code is None and not pod.going and pod.number > newest
        for pod in job.pods
        if pod.number in job.ledger.counted
    )
    pause_s = config.lost_pause_s
    return ceiling_s(before, pause_s, max(_LONGEST_PAUSE_S, pause_s))


def _later(ledger: PodLedger, at_s: float) -> float:
    return at_s if ledger.retry_s is None else max(ledger.retry_s, at_s)


def refused(
    ledger: PodLedger, nodes: int, why: str, now: float, config: PodsConfig, *, never: bool
) -> PodLedger:
    """The ledger of a job of which the cluster has refused a pod.

    Args:
        ledger: as it was kept before.
        nodes: that the job has.
        why: it was refused.
        now: seconds.
        config: of all jobs.
        never: such a pod is never taken: it counts as a node that failed. Else it has no place, so
            that its room is others' until it is asked for again.
    """
    ledger = replace(ledger, why=why[:_WHY_CHARS])
    if never:
        life = NodeEndings(failures=ledger.failures).after("failed")
        return replace(ledger, failures=life.failures, retry_s=_later(ledger, now + life.delay_s))
    return replace(ledger, fits=nodes, fits_until_s=now + _place_again_s(ledger, now, config))


def _place_again_s(ledger: PodLedger, now: float, config: PodsConfig) -> float:
    """How long a job does with what could be placed before it asks for more."""
    if ledger.unplaced_since_s is None:
        return config.place_again_s
    return max(config.place_again_s, min(now - ledger.unplaced_since_s, _LONGEST_WAIT_S))


def _note_unplaced(
    job: JobSeen, ledger: PodLedger, now: float, config: PodsConfig
) -> tuple[PodLedger, list[Happening]]:
    """After a patience a job has to do with what could be placed; later more is asked for again."""
    if not life_of(job, ledger).grows or job.wanted.wrong:
        return ledger, []  # what runs, or waits, of a wrong spec is left alone
    unplaced = [pod for pod in job.staying if pod.unplaced_since_s is not None]
    if not any(now - (pod.unplaced_since_s or 0.0) >= config.place_within_s for pod in unplaced):
        if ledger.fits is not None and now >= ledger.fits_until_s:
            ledger = replace(ledger, fits=None, fits_until_s=0.0)
        return ledger, []
    fits = len(job.staying) - len(unplaced)
    why = f"node {unplaced[0].number} has no place: {unplaced[0].said}"[:_WHY_CHARS]
    again_s = _place_again_s(ledger, now, config)
    told = Happening(
        "Unplaceable", f"{why}; it does with {fits} nodes for {again_s:.0f} s", warns=True
    )
    return replace(ledger, fits=fits, fits_until_s=now + again_s, why=why), [told]

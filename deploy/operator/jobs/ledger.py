"""The observed state of elastic jobs and their pods, and the ledger that outlives an operator.

The ledger records each ended pod once, and pods that the cluster refused or cannot place. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from ....scheduler.backoff import ceiling_s
from ....scheduler.job_states import ElasticJobState, NodeEndings, ending_of, limits_of
from ..capacity import MachineState
from ..conditions import ResourceEvent
from ..config import OperatorConfig


@dataclass(frozen=True, slots=True)
class NodePod:
    """The pod of one node of a job.

    Attributes:
        number: number of the node, unique within the job.
        deleting: the pod is being deleted.
        ended: its program has ended, or will never run.
        code: exit code of its program, or 1 if an init container failed; None: not ended, or the
            cluster ended or never started it (evicted, machine lost): not the job's fault.
        runs: its program runs.
        ready: its program runs and is ready.
        machine: state of its machine.
        unplaced_since_s: since when the cluster reports that it cannot place the pod, or cannot
            start its program; None: no such report.
        message: last lines of output if it has ended, else the reason why it waits.
        sidecars_run: its program has ended, but other containers of the pod run.
    """

    number: int
    deleting: bool = False
    ended: bool = False
    code: int | None = None
    runs: bool = False
    ready: bool = False
    machine: MachineState = "none"
    unplaced_since_s: float | None = None
    message: str = ""
    sidecars_run: bool = False

    @property
    def stays(self) -> bool:
        """Whether it counts as a node of its job."""
        return not (self.ended or self.deleting)

    @property
    def leaves(self) -> bool:
        """Whether it is leaving. False on a silent machine, where this is unknown."""
        return self.deleting and not self.ended and self.machine != "silent"


@dataclass(frozen=True, slots=True)
class DesiredJob:
    """The desired state of a job.

    Attributes:
        least: fewest nodes with which it runs (>= 1).
        most: most nodes that it may have (>= least).
        needs: resources of one node.
        node_limit: limit of nodes that a user set. A limit below `least` counts as `least`. None:
            no limit.
        priority: higher priorities get nodes first.
        retries: failures of nodes that the job survives; nodes that fail together count once.
        stop: it should not run (any more).
        trains: its nodes run `edl student train`, so their exit codes have a known meaning.
        submitted_s: time of submission, in seconds since 1970.
        spec_error: why its spec is invalid; empty: it is valid.
    """

    least: int = 1
    most: int = 1
    needs: Mapping[str, float] = field(default_factory=dict)
    node_limit: int | None = None
    priority: int = 0
    retries: int = 3
    stop: bool = False
    trains: bool = False
    submitted_s: float = 0.0
    spec_error: str = ""


@dataclass(frozen=True, slots=True)
class PodLedger:
    """State of a job that outlives an operator; stored in the status of the job.

    Times are in seconds since 1970.

    Attributes:
        target: number of nodes decided last.
        next_number: number of its next node; lower numbers are never used again.
        failures: failures of nodes; nodes that fail together count once.
        done: a node has succeeded.
        hopeless: a node has failed in a way that a retry cannot change.
        counted: numbers of ended pods that were recorded and still exist.
        changed_s: time of the latest change of `target`, except changes from 0.
        waiting_since_s: since when it waits without nodes.
        started_s: when it first had its least number of nodes.
        ended_s: when it ended.
        retry_at_s: time before which no node is started; None: start nodes at once.
        placeable: number of nodes that the cluster could place when it could not place all. It
            limits the job until `placeable_until_s`. None: no limit.
        placeable_until_s: until when `placeable` applies.
        unplaced_since_s: since when its least number of nodes cannot be placed; None: they run, or
            could always be placed.
        why: reason of the latest problem: a node failed, or the cluster ended, refused or could not
            place one.
        end: how the job ended; empty: it has not, or it is stopped and may continue.
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
    retry_at_s: float | None = None
    placeable: int | None = None
    placeable_until_s: float = 0.0
    unplaced_since_s: float | None = None
    why: str = ""
    end: Literal["", "succeeded", "failed"] = ""


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """One job with its unique name, desired state, ledger and pods.

    Attributes:
        progress: share of its work that is done, 0 to 1; None: unknown.
        steady: its nodes form one world (group of ranks) that has completed a step, or nothing is
            known about them.
    """

    name: str
    wanted: DesiredJob
    ledger: PodLedger = PodLedger()
    pods: tuple[NodePod, ...] = ()
    progress: float | None = None
    steady: bool = True

    @property
    def staying(self) -> list[NodePod]:
        """Its nodes, oldest first."""
        return sorted((pod for pod in self.pods if pod.stays), key=lambda pod: pod.number)


@dataclass(frozen=True, slots=True)
class JobActions:
    """What to do about one job now: write `ledger` first, then create and delete pods.

    Attributes:
        job: its name.
        ledger: its ledger from now on.
        state: its state, as its pods were observed.
        reason: a sentence about its state and number of nodes.
        nodes: number of its nodes without leaving ones.
        ready: number of ready nodes.
        leaving: number of nodes that are leaving; see `NodePod.leaves`.
        degraded: reason of condition Degraded; empty: the condition is false.
        start: numbers of pods to create.
        leave: numbers of pods to delete, which end at a safe point.
        forget: numbers of ended pods to delete.
        events: events to report.
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
    events: tuple[ResourceEvent, ...] = ()


#: Reason of condition Degraded while the spec of a job is invalid.
SPEC_REFUSED: Final = "SpecRefused"
_WHY_CHARS = 600
#: Longest pause in seconds after the end of a node.
_LONGEST_PAUSE_S = 60.0
#: Pause in seconds after the cluster failed to create a pod.
_CREATE_PAUSE_S: Final = 30.0
#: Longest pause in seconds before a job asks again for nodes that could not be placed.
_LONGEST_WAIT_S = 3600.0


def endings_of(job: ObservedJob, ledger: PodLedger) -> NodeEndings:
    """Return how the nodes of a job have ended."""
    return NodeEndings(job.wanted.retries, ledger.failures, ledger.done, ledger.hopeless)


@dataclass(frozen=True, slots=True)
class AssessedJob:
    """One job, after its ended pods were recorded: the input of a decision.

    Attributes:
        job: the observed job.
        ledger: its ledger, in which all ended pods are recorded.
        events: events about newly recorded pods, and about pods that cannot be placed.
        waits_for_room: its least number of nodes cannot be placed, so it waits without nodes.
    """

    job: ObservedJob
    ledger: PodLedger
    events: tuple[ResourceEvent, ...]
    waits_for_room: bool

    @property
    def endings(self) -> NodeEndings:
        """How its nodes have ended."""
        return endings_of(self.job, self.ledger)

    @property
    def limits(self) -> tuple[int, int]:
        """Its least and its greatest number of nodes now."""
        wanted, nodes = self.job.wanted, len(self.job.staying)
        return limits_of(
            self.endings, wanted.least, wanted.most, node_limit=wanted.node_limit, nodes=nodes
        )


def assess_job(job: ObservedJob, now: float, config: OperatorConfig) -> AssessedJob:
    """Record which pods of a job have ended or cannot be placed, before the decision about it."""
    job = replace(job, ledger=_clip_times(job.ledger, now, config))
    ledger, end_events = _record_ends(job, now, config)
    ledger, unplaced_events = _record_unplaced(job, ledger, now, config)
    waits_for_room = (
        ledger.placeable is not None
        and ledger.placeable < job.wanted.least
        and endings_of(job, ledger).may_start_nodes
        and not job.wanted.spec_error
    )
    if waits_for_room and ledger.unplaced_since_s is None:
        ledger = replace(ledger, unplaced_since_s=now)
    elif sum(pod.runs for pod in job.staying) >= job.wanted.least:
        ledger = replace(ledger, unplaced_since_s=None)
    return AssessedJob(job, ledger, (*end_events, *unplaced_events), waits_for_room)


def _clip_times(ledger: PodLedger, now: float, config: OperatorConfig) -> PodLedger:
    """Clip times too far in the future, which an operator with a fast clock wrote."""

    def clip(at_s: float | None, ahead_s: float) -> float | None:
        return None if at_s is None else min(at_s, now + ahead_s)

    ledger = replace(
        ledger,
        changed_s=clip(ledger.changed_s, 0.0),
        waiting_since_s=clip(ledger.waiting_since_s, 0.0),
        retry_at_s=clip(ledger.retry_at_s, max(_LONGEST_PAUSE_S, config.lost_pause_s)),
        unplaced_since_s=clip(ledger.unplaced_since_s, 0.0),
    )
    latest_s = now + _place_again_s(ledger, now, config)
    return replace(ledger, placeable_until_s=min(ledger.placeable_until_s, latest_s))


def _record_ends(
    job: ObservedJob, now: float, config: OperatorConfig
) -> tuple[PodLedger, list[ResourceEvent]]:
    pods = {pod.number: pod for pod in job.pods}
    events: list[ResourceEvent] = []
    # Forget numbers of pods that are gone: numbers are never reused.
    ledger = replace(job.ledger, counted=frozenset(n for n in job.ledger.counted if n in pods))
    if ledger.retry_at_s is not None and now >= ledger.retry_at_s:
        ledger = replace(ledger, retry_at_s=None)
    for number in sorted(pods):
        pod = pods[number]
        if not pod.ended or number in ledger.counted:
            continue
        ledger = replace(ledger, counted=ledger.counted | {number})
        if pod.code is None:
            if not pod.deleting:
                why = f"the cluster ended node {number}: {pod.message or 'reason unknown'}"[
                    :_WHY_CHARS
                ]
                events.append(ResourceEvent("NodeLost", why))
                ledger = replace(ledger, retry_at_s=_later(ledger, now + _pause_s(job, config)))
                ledger = ledger if endings_of(job, ledger).broken else replace(ledger, why=why)
            continue
        ending = ending_of(pod.code, pod.deleting, job.wanted.trains)
        endings = endings_of(job, ledger).after(ending, pausing=ledger.retry_at_s is not None)
        ledger = replace(
            ledger, failures=endings.failures, done=endings.done, hopeless=endings.hopeless
        )
        if ending in ("failed", "hopeless"):
            last = f"its last lines: {pod.message}" if pod.message else "it printed nothing"
            why = f"node {number} ended with exit code {pod.code}; {last}"[:_WHY_CHARS]
            ledger = replace(ledger, why=why, retry_at_s=_later(ledger, now + endings.delay_s))
            events.append(ResourceEvent("NodeFailed", why, warns=True))
        elif ending == "done":
            events.append(ResourceEvent("NodeDone", f"node {number} has finished"))
    return ledger, events


def _pause_s(job: ObservedJob, config: OperatorConfig) -> float:
    """Return the pause in seconds after a node that the cluster ended.

    It grows while the cluster ends nodes and no newer node runs: a broken machine may accept pods
    and end them.
    """
    newest = max((pod.number for pod in job.staying if pod.runs), default=0)
    ended_before = sum(
        pod.ended and pod.code is None and not pod.deleting and pod.number > newest
        for pod in job.pods
        if pod.number in job.ledger.counted
    )
    pause_s = config.lost_pause_s
    return ceiling_s(ended_before, pause_s, max(_LONGEST_PAUSE_S, pause_s))


def _later(ledger: PodLedger, at_s: float) -> float:
    return at_s if ledger.retry_at_s is None else max(ledger.retry_at_s, at_s)


def record_failed_start(ledger: PodLedger, why: str, now: float) -> PodLedger:
    """Return the ledger of a job after the cluster failed to create a pod: the job pauses.

    Args:
        ledger: the stored ledger.
        why: reason of the failure.
        now: seconds since 1970.
    """
    return replace(ledger, why=why[:_WHY_CHARS], retry_at_s=_later(ledger, now + _CREATE_PAUSE_S))


def record_refusal(
    ledger: PodLedger, nodes: int, why: str, now: float, config: OperatorConfig, *, never: bool
) -> PodLedger:
    """Return the ledger of a job after the cluster has refused a pod.

    Args:
        ledger: the stored ledger.
        nodes: number of nodes that the job has.
        why: reason of the refusal.
        now: seconds since 1970.
        config: how jobs share the cluster.
        never: the cluster will never accept such a pod, so it counts as a failed node. False: the
            pod cannot be placed now, and other jobs may use its room until the next attempt.
    """
    ledger = replace(ledger, why=why[:_WHY_CHARS])
    if never:
        endings = NodeEndings(failures=ledger.failures).after("failed")
        return replace(
            ledger, failures=endings.failures, retry_at_s=_later(ledger, now + endings.delay_s)
        )
    return replace(
        ledger, placeable=nodes, placeable_until_s=now + _place_again_s(ledger, now, config)
    )


def _place_again_s(ledger: PodLedger, now: float, config: OperatorConfig) -> float:
    """Return the seconds before a job asks again for nodes that could not be placed."""
    if ledger.unplaced_since_s is None:
        return config.place_again_s
    return max(config.place_again_s, min(now - ledger.unplaced_since_s, _LONGEST_WAIT_S))


def _record_unplaced(
    job: ObservedJob, ledger: PodLedger, now: float, config: OperatorConfig
) -> tuple[PodLedger, list[ResourceEvent]]:
    """Limit a job to the nodes that could be placed, for a while."""
    if not endings_of(job, ledger).may_start_nodes or job.wanted.spec_error:
        return ledger, []  # pods of an invalid spec are left alone
    unplaced = [pod for pod in job.staying if pod.unplaced_since_s is not None]
    if not any(now - (pod.unplaced_since_s or 0.0) >= config.place_within_s for pod in unplaced):
        if ledger.placeable is not None and now >= ledger.placeable_until_s:
            ledger = replace(ledger, placeable=None, placeable_until_s=0.0)
        return ledger, []
    placeable = len(job.staying) - len(unplaced)
    first = unplaced[0]
    why = f"node {first.number} cannot be placed or started: {first.message}"[:_WHY_CHARS]
    pause_s = _place_again_s(ledger, now, config)
    event = ResourceEvent(
        "Unplaceable",
        f"{why}; {placeable} nodes could be placed; tries more in {pause_s:.0f} s",
        warns=True,
    )
    return replace(ledger, placeable=placeable, placeable_until_s=now + pause_s, why=why), [event]

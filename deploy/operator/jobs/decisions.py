"""Decides for all jobs of a cluster which pods to create and delete. No I/O.

`decide_pods` asks `scheduler.elastic` for the number of nodes of each job, and derives pods, states
and events. The caller writes a job's ledger before it creates or deletes pods, so the operator may
be killed between any two requests to the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....scheduler.elastic import decide
from ....scheduler.elastic_values import ElasticJob, ElasticMemory, Pool, Target
from ....scheduler.job_states import ElasticJobState, state_of
from ..conditions import ResourceEvent
from ..config import OperatorConfig
from .ledger import (
    SPEC_REFUSED,
    AssessedJob,
    JobActions,
    NodePod,
    ObservedJob,
    PodLedger,
    assess_job,
)

_REASON_CHARS = 600
#: Number of ended pods of a job that are kept for their logs.
_ENDED_KEPT = 5


def _actions(case: AssessedJob, target: Target | None, now: float) -> JobActions:
    """Return the actions for one job.

    Args:
        case: the job; `ledger.target` is its new number of nodes.
        target: decision of `scheduler.elastic`; None: it did not decide about this job.
        now: seconds since 1970.
    """
    job = case.job
    leave = _pods_to_delete(case, 0 if target is None else target.nodes)
    start = _pods_to_create(case) if target is not None else ()
    ledger = case.ledger
    if start:
        ledger = replace(ledger, next_number=start[-1] + 1)
    running = [pod for pod in job.staying if pod.runs]
    least, _ = case.limits
    if ledger.started_s is None and job.pods and len(running) >= least:
        ledger = replace(ledger, started_s=now)
    state = _state(case, ledger, least, len(running))
    ledger = _with_end(ledger, state, now)
    reason = _reason(case, target, state, now)[:_REASON_CHARS]
    return JobActions(
        job.name,
        ledger,
        state,
        reason,
        nodes=len(job.staying),
        ready=sum(pod.ready for pod in running),
        leaving=sum(pod.leaves for pod in job.pods),
        degraded=_degraded_reason(case, state),
        start=start,
        leave=leave,
        forget=_ended_pods_to_delete(case),
        events=(*case.events, *_events(case, target, state, reason)),
    )


def _pods_to_create(case: AssessedJob) -> tuple[int, ...]:
    ledger = case.ledger
    missing = ledger.target - len(case.job.staying)
    if (
        missing <= 0
        or ledger.retry_at_s is not None
        or not case.endings.may_start_nodes
        or case.job.wanted.spec_error
    ):
        return ()
    # Skip existing pods, too: they may belong to a deleted job of this name.
    first = max([ledger.next_number, *(pod.number + 1 for pod in case.job.pods)])
    return tuple(range(first, first + missing))


def _pods_to_delete(case: AssessedJob, target: int) -> tuple[int, ...]:
    """Choose the surplus nodes to delete.

    Nodes on silent or closed machines are chosen first, then nodes that cannot be placed or
    started, then other nodes that do not run. Among equal nodes, the newest is chosen first.
    """
    staying = case.job.staying
    surplus = max(0, len(staying) - target)

    def rank(pod: NodePod) -> tuple[bool, bool, bool, int]:
        machine_is_usable = pod.machine in ("counted", "none")
        return machine_is_usable, pod.unplaced_since_s is None, pod.runs, -pod.number

    return tuple(sorted(pod.number for pod in sorted(staying, key=rank)[:surplus]))


def _ended_pods_to_delete(case: AssessedJob) -> tuple[int, ...]:
    ended = sorted((p for p in case.job.pods if p.ended and not p.deleting), key=lambda p: p.number)
    old = max(0, len(ended) - _ENDED_KEPT)
    return tuple(p.number for index, p in enumerate(ended) if index < old or p.sidecars_run)


def _state(case: AssessedJob, ledger: PodLedger, least: int, running: int) -> ElasticJobState:
    if ledger.end:
        return ledger.end
    job, endings = case.job, case.endings
    leaving = sum(pod.leaves for pod in job.pods)
    begun = ledger.started_s is not None
    if running + leaving == 0 and job.staying:  # its pods do not run yet
        is_ending = job.wanted.stop or not endings.may_start_nodes
        return "scaling" if begun or is_ending else "creating"
    return state_of(
        endings,
        stop=job.wanted.stop,
        target=ledger.target,
        min_nodes=least,
        nodes=running,
        leaving=leaving,
        begun=begun,
    )


def _with_end(ledger: PodLedger, state: ElasticJobState, now: float) -> PodLedger:
    if state not in ("succeeded", "failed", "stopped"):
        return replace(ledger, ended_s=None)
    end = ledger.end if state == "stopped" else state
    ended_s = now if ledger.ended_s is None else ledger.ended_s
    ledger = replace(ledger, placeable=None, placeable_until_s=0.0, unplaced_since_s=None)
    return replace(ledger, end=end, ended_s=ended_s, retry_at_s=None)


def _reason(case: AssessedJob, target: Target | None, state: ElasticJobState, now: float) -> str:
    wanted, ledger, endings = case.job.wanted, case.ledger, case.endings
    match state:
        case "succeeded":
            return "a node has finished, and no other is left"
        case "stopped":
            return "it was asked to stop"
        case "failed":
            count = f"failures of nodes: {endings.failures}; the last: "
            return ledger.why if endings.hopeless else f"{count}{ledger.why}"
    if wanted.stop or endings.broken:
        why = "it was asked to stop" if wanted.stop else ledger.why
        return f"its nodes are leaving: {why}"
    if not endings.may_start_nodes:
        return "a node has finished; waiting for the others"
    if wanted.spec_error:
        return f"the spec is invalid: {wanted.spec_error}"
    retry_s = max(0.0, ledger.placeable_until_s - now)
    if case.waits_for_room:
        return (
            f"waits, as {ledger.placeable} nodes could be placed and it needs {wanted.least}:"
            f" {ledger.why}; tries again in {retry_s:.0f} s"
        )
    if wait_reason := _wait_reason(case):
        return wait_reason
    if _pauses(case):
        return f"a node is restarted: {ledger.why}"
    if ledger.placeable is not None and ledger.target == ledger.placeable < wanted.most:
        return (
            f"runs with the {ledger.placeable} nodes that could be placed; tries more in"
            f" {retry_s:.0f} s: {ledger.why}"
        )
    return target.reason if target is not None else ""


def _pauses(case: AssessedJob) -> bool:
    """Return whether the job lacks a node, and starts none before the end of a pause."""
    return case.ledger.retry_at_s is not None and len(case.job.staying) < case.ledger.target


def _wait_reason(case: AssessedJob) -> str:
    """Return why a node is not placed or cannot start; empty: no node reports a problem."""
    for pod in case.job.staying:
        if pod.message and not pod.runs:
            return f"node {pod.number} waits: {pod.message}"
    return ""


def _degraded_reason(case: AssessedJob, state: ElasticJobState) -> str:
    """Return the reason of condition Degraded; empty: the condition is false."""
    if state == "failed" or (state not in ("succeeded", "stopped") and case.endings.broken):
        return "Failed"
    if state in ("succeeded", "stopped"):
        return ""
    if case.job.wanted.spec_error:
        return SPEC_REFUSED
    if case.ledger.placeable is not None:
        return "Unplaceable"
    if _wait_reason(case):
        return "NodeWaits"
    if _pauses(case):
        return "NodeFailed"
    return ""


def _events(
    case: AssessedJob, target: Target | None, state: ElasticJobState, reason: str
) -> list[ResourceEvent]:
    job, before, after = case.job, case.job.ledger.target, case.ledger.target
    events = []
    if target is not None and before != after:
        events.append(ResourceEvent("Scaled", f"{before} -> {after} nodes: {target.reason}"))
    elif before and not after and not job.ledger.end:
        events.append(ResourceEvent("Scaled", f"{before} -> 0 nodes: {reason}"))
    if state in ("succeeded", "failed", "stopped") and job.ledger.ended_s is None:
        events.append(ResourceEvent(state.capitalize(), reason, warns=state == "failed"))
    return events


#: A resource that no pool has.
_UNAVAILABLE = "(nothing has it)"


def decide_pods(
    pool: Pool, jobs: Sequence[ObservedJob], now: float, config: OperatorConfig
) -> tuple[JobActions, ...]:
    """Decide what to do about each job now.

    Args:
        pool: capacity of the cluster, and what others use of it.
        jobs: all jobs, also ended ones; names are unique.
        now: seconds since 1970.
        config: how jobs share the cluster.

    Returns:
        Actions in the order of `jobs`. If they are carried out and nothing else happens, the next
        decision creates and deletes no pods, with one exception: a leaving pod that never had a
        machine frees its room at once, and the next decision may give that room to another job.

    Raises:
        ValueError: two jobs share a name.
    """
    if len({job.name for job in jobs}) < len(jobs):
        raise ValueError(f"two jobs have one name: {sorted(job.name for job in jobs)}")
    cases = [assess_job(job, now, config) for job in jobs]
    elastic_jobs = {
        case.job.name: elastic_job
        for case in cases
        if (elastic_job := _elastic_job(case)) is not None
    }
    undecided = [
        _placeholder(case, f"(undecided) {index}")
        for index, case in enumerate(cases)
        if case.job.name not in elastic_jobs
    ]

    def times(field: str) -> dict[str, float]:
        by_job = {case.job.name: getattr(case.ledger, field) for case in cases}
        return {name: at_s for name, at_s in by_job.items() if at_s is not None}

    memory = ElasticMemory(times("changed_s"), times("waiting_since_s"))
    targets, memory = decide(
        pool, [*elastic_jobs.values(), *undecided], memory, now, config.elastic
    )
    by_name = {target.job: target for target in targets}
    actions = []
    for case in cases:
        target = by_name.get(case.job.name)
        ledger = _updated_ledger(case, target, memory, now)
        actions.append(_actions(replace(case, ledger=ledger), target, now))
    return tuple(actions)


def _elastic_job(case: AssessedJob) -> ElasticJob | None:
    """Return the input of `scheduler.elastic`; None: there is nothing to decide."""
    job, ledger, endings, wanted = case.job, case.ledger, case.endings, case.job.wanted
    staying = len(job.staying)
    if wanted.stop or endings.broken or ledger.end or case.waits_for_room:
        return None
    if not staying and (not endings.may_start_nodes or wanted.spec_error):
        return None
    if wanted.spec_error:  # its nodes keep running with the former spec
        least = most = nodes = staying
    else:
        least, most = case.limits
        if ledger.placeable is not None and endings.may_start_nodes:
            most = max(least, min(most, ledger.placeable))
        nodes = ledger.target if endings.may_start_nodes else min(ledger.target, staying)
    return ElasticJob(
        job.name,
        least,
        most,
        nodes,
        _leaving(job),
        wanted.needs,
        priority=wanted.priority,
        submitted_s=wanted.submitted_s,
        progress=job.progress,
        steady=not staying or (job.steady and all(pod.ready for pod in job.staying)),
    )


def _leaving(job: ObservedJob) -> int:
    """Return the number of leaving nodes that still use the pool."""
    return sum(pod.deleting and not pod.ended and pod.machine == "counted" for pod in job.pods)


def _placeholder(case: AssessedJob, name: str) -> ElasticJob:
    """Return a placeholder for a job without a decision, whose pods still use the pool.

    The placeholder needs a resource that no pool has, so it never gets a node.
    """
    leaving = sum(not pod.ended and pod.machine in ("counted", "none") for pod in case.job.pods)
    needs = {**case.job.wanted.needs, _UNAVAILABLE: 1.0}
    return ElasticJob(name, 1, 1, 0, leaving, needs, submitted_s=float("inf"), priority=-(10**9))


def _updated_ledger(
    case: AssessedJob, target: Target | None, memory: ElasticMemory, now: float
) -> PodLedger:
    """Return the ledger after the decision."""
    name, ledger = case.job.name, case.ledger
    if target is not None:
        return replace(
            ledger,
            target=target.nodes,
            changed_s=memory.changed_s.get(name),
            waiting_since_s=memory.waiting_since_s.get(name),
        )
    waits = case.waits_for_room and not case.job.wanted.stop and not ledger.end
    since_s = ledger.waiting_since_s if ledger.waiting_since_s is not None else now
    return replace(ledger, target=0, waiting_since_s=since_s if waits else None)

"""What one job's number of nodes comes to: its pods to make and to end, its state, what is told."""

from __future__ import annotations

from dataclasses import replace

from ..elastic import Target
from ..job_states import State, limits_of, state_of
from .noting import Case
from .values import Happening, Ledger, Orders, PodsConfig, PodSeen

_REASON_CHARS = 600


def orders_of(case: Case, target: Target | None, now: float, config: PodsConfig) -> Orders:
    """The orders for one job.

    Args:
        case: the job; `ledger.target` is what it shall have from now on.
        target: what the rule said; None: it was not asked.
        now: seconds.
        config: of all jobs.
    """
    job = case.job
    leave = _leave(case, None if target is None else target.nodes)
    start = _start(case) if target is not None else ()
    ledger = case.ledger
    if start:
        ledger = replace(ledger, next_number=start[-1] + 1)
    runs = [pod for pod in job.staying if pod.runs]
    least = _least(case)
    if ledger.started_s is None and job.pods and len(runs) >= least:
        ledger = replace(ledger, started_s=now)
    state = _state(case, ledger, least, len(runs))
    ledger = _ended(ledger, state, now)
    reason = _reason(case, target, state, now)[:_REASON_CHARS]
    return Orders(
        job.name,
        ledger,
        state,
        reason,
        nodes=len(job.staying),
        ready=sum(pod.ready for pod in runs),
        leaving=sum(pod.leaves for pod in job.pods),
        degraded=_degraded(case, state),
        start=start,
        leave=leave,
        forget=_forget(case, config),
        happenings=(*case.told, *_happenings(case, target, state, reason)),
    )


def _start(case: Case) -> tuple[int, ...]:
    ledger = case.ledger
    missing = ledger.target - len(case.job.staying)
    if missing <= 0 or ledger.retry_s is not None or not case.life.grows or case.job.wanted.wrong:
        return ()
    # Beyond what is written down too: a pod of a job of this name that was deleted may be there.
    first = max([ledger.next_number, *(pod.number + 1 for pod in case.job.pods)])
    return tuple(range(first, first + missing))


def _leave(case: Case, target: int | None) -> tuple[int, ...]:
    """Those on machines that are lost or closed go first, then who has no place, does not run yet.

    Of those that are alike the newest go.
    """
    staying = case.job.staying
    count = len(staying) - (target or 0)

    def least_missed(pod: PodSeen) -> tuple[bool, bool, bool, int]:
        stays_put = pod.machine in ("counted", "none")
        return stays_put, pod.unplaced_since_s is None, pod.runs, -pod.number

    leaving = sorted(staying, key=least_missed)[: max(0, count)]
    return tuple(sorted(pod.number for pod in leaving))


def _forget(case: Case, config: PodsConfig) -> tuple[int, ...]:
    ended = sorted((p for p in case.job.pods if p.ended and not p.going), key=lambda p: p.number)
    old = max(0, len(ended) - config.ended_kept)
    return tuple(p.number for place, p in enumerate(ended) if place < old or p.lingers)


def _least(case: Case) -> int:
    wanted = case.job.wanted
    staying = len(case.job.staying)
    return limits_of(case.life, wanted.least, wanted.most, asked=wanted.asked, nodes=staying)[0]


def _state(case: Case, ledger: Ledger, least: int, runs: int) -> State:
    if ledger.end:
        return ledger.end
    job, life = case.job, case.life
    leaving = sum(pod.leaves for pod in job.pods)
    begun = ledger.started_s is not None
    if runs + leaving == 0 and job.staying:  # pods that do not run yet: not an end
        over = job.wanted.stop or not life.grows
        return "scaling" if begun or over else "creating"
    return state_of(
        life,
        stop=job.wanted.stop,
        target=ledger.target,
        least=least,
        nodes=runs,
        leaving=leaving,
        begun=begun,
    )


def _ended(ledger: Ledger, state: State, now: float) -> Ledger:
    if state not in ("succeeded", "failed", "stopped"):
        return replace(ledger, ended_s=None)
    end = ledger.end if state == "stopped" else state
    ended_s = now if ledger.ended_s is None else ledger.ended_s
    ledger = replace(ledger, fits=None, fits_until_s=0.0, unplaced_since_s=None)
    return replace(ledger, end=end, ended_s=ended_s, retry_s=None)


def _reason(case: Case, target: Target | None, state: State, now: float) -> str:
    wanted, ledger, life = case.job.wanted, case.ledger, case.life
    match state:
        case "succeeded":
            return "a node has ended well, and no other is left"
        case "stopped":
            return "it was asked to stop"
        case "failed":
            again = "" if life.hopeless else f"{life.failures} nodes ended badly: "
            return f"{again}{ledger.why}"
    if wanted.stop or life.broken:
        why = "it was asked to stop" if wanted.stop else ledger.why
        return f"its nodes are leaving: {why}"
    if not life.grows:
        return "a node has ended well; the last ones are waited for"
    if wanted.wrong:
        return f"nothing can be started as it says: {wanted.wrong}"
    again_s = max(0.0, ledger.fits_until_s - now)
    if case.held:
        return (
            f"waits, as {ledger.fits} nodes have a place and it needs {wanted.least}:"
            f" {ledger.why}; tries again in {again_s:.0f} s"
        )
    if blocked := _blocked(case):
        return blocked
    if _pauses(case):
        return f"a node is started again: {ledger.why}"
    if ledger.fits is not None and ledger.target == ledger.fits < wanted.most:
        return (
            f"has the {ledger.fits} nodes that have a place, asks for more in {again_s:.0f} s:"
            f" {ledger.why}"
        )
    return target.reason if target is not None else ""


def _pauses(case: Case) -> bool:
    """Whether a node is missing, and is not started yet after what happened to one before it."""
    return case.ledger.retry_s is not None and len(case.job.staying) < case.ledger.target


def _blocked(case: Case) -> str:
    """What a node says that is not placed, or cannot begin."""
    for pod in case.job.staying:
        if pod.said and not pod.runs:
            return f"node {pod.number} waits: {pod.said}"
    return ""


def _degraded(case: Case, state: State) -> str:
    if state == "failed" or (state not in ("succeeded", "stopped") and case.life.broken):
        return "Failed"
    if state in ("succeeded", "stopped"):
        return ""
    if case.job.wanted.wrong:
        return "SpecRefused"
    if case.ledger.fits is not None:
        return "Unplaceable"
    if _blocked(case):
        return "NodeWaits"
    if _pauses(case):
        return "NodeFailed"
    return ""


def _happenings(case: Case, target: Target | None, state: State, reason: str) -> list[Happening]:
    job, was, now = case.job, case.job.ledger.target, case.ledger.target
    found = []
    if target is not None and was != now:
        found.append(Happening("Scaled", f"{was} -> {now} nodes: {target.reason}"))
    elif was and not now and not job.ledger.end:
        found.append(Happening("Scaled", f"{was} -> 0 nodes: {reason}"))
    if state in ("succeeded", "failed", "stopped") and job.ledger.ended_s is None:
        found.append(Happening(state.capitalize(), reason, warns=state == "failed"))
    return found

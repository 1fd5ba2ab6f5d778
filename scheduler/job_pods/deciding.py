"""All jobs of a cluster at one moment: who gets how many nodes, which pods come and go for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..elastic import ElasticJob, ElasticMemory, Pool, Target, decide
from ..job_states import limits_of
from .noting import Case, case_of
from .ordering import orders_of
from .values import JobSeen, Ledger, Orders, PodsConfig

#: A kind of resource that no pool has: a job that needs it is never given a node.
_NEVER = "(nothing has it)"


def decide_pods(
    pool: Pool, jobs: Sequence[JobSeen], now: float, config: PodsConfig
) -> tuple[Orders, ...]:
    """What is done about each job now.

    Args:
        pool: what the cluster has, and what of it is others'.
        jobs: all of them, those that have ended too; names are unique.
        now: seconds, on the clock of the ledgers.
        config: how they share.

    Returns:
        Orders for each, in the order of `jobs`. Where they are carried out, and nothing else
        happens, the next decision orders nothing.

    Raises:
        ValueError: two jobs have one name.
    """
    if len({job.name for job in jobs}) < len(jobs):
        raise ValueError(f"two jobs have one name: {sorted(job.name for job in jobs)}")
    cases = [case_of(job, now, config) for job in jobs]
    views = {case.job.name: view for case in cases if (view := _view(case)) is not None}
    over = [
        _ghost(case, f"(over) {index}")
        for index, case in enumerate(cases)
        if case.job.name not in views
    ]
    memory = ElasticMemory(
        {c.job.name: c.ledger.changed_s for c in cases if c.ledger.changed_s is not None},
        {
            c.job.name: c.ledger.waiting_since_s
            for c in cases
            if c.ledger.waiting_since_s is not None
        },
    )
    targets, memory = decide(pool, [*views.values(), *over], memory, now, config.elastic)
    by_name = {target.job: target for target in targets}
    found = []
    for case in cases:
        target = by_name.get(case.job.name)
        ledger = _remembered(case, target, memory, now)
        found.append(orders_of(replace(case, ledger=ledger), target, now, config))
    return tuple(found)


def _view(case: Case) -> ElasticJob | None:
    """What the rule of sharing sees; None: there is nothing to decide."""
    job, ledger, life, wanted = case.job, case.ledger, case.life, case.job.wanted
    staying = len(job.staying)
    if wanted.stop or life.broken or ledger.end or case.held:
        return None
    if not staying and (not life.grows or wanted.wrong):
        return None
    if wanted.wrong:  # what runs was started as it said before: it is left alone
        least = most = nodes = staying
    else:
        least, most = limits_of(life, wanted.least, wanted.most, asked=wanted.asked, nodes=staying)
        if ledger.fits is not None and life.grows:
            most = max(least, min(most, ledger.fits))
        nodes = ledger.target if life.grows else min(ledger.target, staying)
    return ElasticJob(
        job.name,
        least,
        most,
        nodes,
        _leaving(job),
        wanted.needs,
        priority=wanted.priority,
        submitted_s=wanted.submitted_s,
        progress=job.progress.share,
        steady=not staying or (job.progress.steady and all(pod.ready for pod in job.staying)),
    )


def _leaving(job: JobSeen) -> int:
    """Nodes on their way out, as far as they hold what the pool has."""
    return sum(pod.going and not pod.ended and pod.machine == "counted" for pod in job.pods)


def _ghost(case: Case, name: str) -> ElasticJob:
    """Stands for the pods of a job that is not decided about: they hold room until they are gone.

    It can have no node, so that nothing is kept for it.
    """
    held = sum(not pod.ended and pod.machine in ("counted", "none") for pod in case.job.pods)
    needs = {**case.job.wanted.needs, _NEVER: 1.0}
    return ElasticJob(name, 1, 1, 0, held, needs, submitted_s=float("inf"), priority=-(10**9))


def _remembered(case: Case, target: Target | None, memory: ElasticMemory, now: float) -> Ledger:
    """The ledger with what was decided."""
    name, ledger = case.job.name, case.ledger
    if target is not None:
        return replace(
            ledger,
            target=target.nodes,
            changed_s=memory.changed_s.get(name),
            waiting_since_s=memory.waiting_since_s.get(name),
        )
    waits = case.held and not case.job.wanted.stop and not ledger.end
    since_s = ledger.waiting_since_s if ledger.waiting_since_s is not None else now
    return replace(ledger, target=0, waiting_since_s=since_s if waits else None)

"""Laws of the rule of elastic jobs: whatever jobs, pools and events there are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.elastic import decide
from edl.scheduler.elastic_values import (
    ElasticConfig,
    ElasticJob,
    ElasticMemory,
    Pool,
    Target,
    resources_of,
)

KINDS = ("cpu", "gpu")
AT_ONCE = ElasticConfig(freeze_s=0, patience_s=0)


@st.composite
def jobs_of(draw: st.DrawFn, *, raised: bool = False) -> list[ElasticJob]:
    """Up to eight jobs, waiting and running, of three priorities.

    `raised`: some run with less than their minimum, which was raised.
    """
    found = []
    for index in range(draw(st.integers(1, 8))):
        least = draw(st.integers(1, 4))
        most = least + draw(st.integers(0, 6))
        nodes = draw(st.one_of(st.just(0), st.integers(1 if raised else least, most)))
        found.append(
            ElasticJob(
                f"job{index}",
                least,
                most,
                nodes=nodes,
                leaving=draw(st.integers(0, 2)),
                needs={kind: draw(st.integers(0, 3)) for kind in KINDS} | {"cpu": 1},
                base=draw(st.sampled_from([{}, {"cpu": 2}])),
                priority=draw(st.integers(0, 2)),
                submitted_s=float(draw(st.integers(0, 5))),
                progress=draw(st.sampled_from([None, 0.0, 0.5, 0.96])),
                steady=draw(st.booleans()),
            )
        )
    return found


pools = st.builds(
    lambda cpu, gpu, online: Pool({"cpu": cpu, "gpu": gpu}, {"cpu": online}),
    st.integers(0, 40),
    st.integers(0, 20),
    st.integers(0, 10),
)
LOADS, GAPS = st.sampled_from([1.0, 0.97, 0.5]), st.sampled_from([0.0, 0.5, 1.0])
configs = st.builds(
    ElasticConfig,
    mode=st.sampled_from(["elastic", "gang"]),
    max_load=LOADS,
    freeze_s=st.sampled_from([0.0, 30.0]),
    rebalance_gap=GAPS,
    patience_s=st.sampled_from([0.0, 600.0]),
)


def taken(jobs: Sequence[ElasticJob], nodes: dict[str, int], kind: str) -> float:
    return sum(resources_of(job, nodes[job.name]).get(kind, 0.0) for job in jobs)


def limit(pool: Pool, config: ElasticConfig, kind: str) -> float:
    room = config.max_load * pool.capacity.get(kind, 0.0) - pool.reserved.get(kind, 0.0)
    return max(0.0, room) + 1e-6


def obeyed(jobs: Sequence[ElasticJob], targets: Sequence[Target]) -> list[ElasticJob]:
    """The jobs once all orders are carried out, and all have left that were told to."""
    pairs = zip(jobs, targets, strict=True)
    return [replace(job, nodes=target.nodes, leaving=0, steady=True) for job, target in pairs]


@given(jobs_of(raised=True), pools, configs, st.floats(0, 100))
def test_what_is_ordered_fits_into_the_pool_and_into_what_is_free(
    jobs: list[ElasticJob], pool: Pool, config: ElasticConfig, changed_s: float
) -> None:
    memory = ElasticMemory({job.name: changed_s for job in jobs[::2]})
    targets, _ = decide(pool, jobs, memory, 100.0, config)
    nodes = {target.job: target.nodes for target in targets}
    grown = {j.name for j in jobs if nodes[j.name] > j.nodes}
    for kind in KINDS:
        assert taken(jobs, nodes, kind) <= limit(pool, config, kind)
        if any(job.name in grown and resources_of(job, 1).get(kind) for job in jobs):
            present = {j.name: max(j.nodes, nodes[j.name]) + j.leaving for j in jobs}
            assert taken(jobs, present, kind) <= limit(pool, config, kind)


@given(jobs_of(), pools, configs)
def test_a_job_has_none_of_its_nodes_or_as_many_as_it_said(
    jobs: list[ElasticJob], pool: Pool, config: ElasticConfig
) -> None:
    if config.mode == "gang":
        jobs = [replace(job, nodes=job.max_nodes if job.nodes else 0) for job in jobs]
    targets, _ = decide(pool, jobs, ElasticMemory(), 0.0, config)
    for job, target in zip(jobs, targets, strict=True):
        least = job.max_nodes if config.mode == "gang" else job.min_nodes
        assert target.nodes == 0 or least <= target.nodes <= job.max_nodes


@given(jobs_of(), pools, configs)
def test_a_running_job_is_stopped_only_for_a_higher_priority_or_if_the_pool_lost_room(
    jobs: list[ElasticJob], pool: Pool, config: ElasticConfig
) -> None:
    config = replace(config, mode="elastic")
    targets, _ = decide(pool, jobs, ElasticMemory(), 0.0, config)
    minima = {job.name: job.min_nodes if job.nodes else 0 for job in jobs}
    enough = all(taken(jobs, minima, kind) <= limit(pool, config, kind) for kind in KINDS)
    for job, target in zip(jobs, targets, strict=True):
        if job.nodes and not target.nodes and enough:
            assert any(other.priority > job.priority for other in jobs)


@given(jobs_of(raised=True), pools, LOADS, GAPS)
def test_it_comes_to_rest_and_nothing_is_idle_that_a_job_could_use(
    jobs: list[ElasticJob], pool: Pool, max_load: float, gap: float
) -> None:
    config = replace(AT_ONCE, max_load=max_load, rebalance_gap=gap, patience_s=1e9)
    jobs = [replace(job, progress=None, steady=True) for job in jobs]
    memory = ElasticMemory()
    for step in range(60):
        targets, memory = decide(pool, jobs, memory, float(step), config)
        rests = all(
            target.nodes == job.nodes and not job.leaving
            for job, target in zip(jobs, targets, strict=True)
        )
        jobs = obeyed(jobs, targets)
        if rests:
            break
    else:
        raise AssertionError(f"still changing after 60 decisions: {jobs}")
    nodes = {job.name: job.nodes for job in jobs}
    for job in jobs:
        more = job.nodes + 1 if job.nodes else job.min_nodes
        if more > job.max_nodes:
            continue
        wish = nodes | {job.name: more}
        kinds = [kind for kind in KINDS if resources_of(job, 1).get(kind)]
        fits = all(taken(jobs, wish, one) <= limit(pool, config, one) - 2e-6 for one in kinds)
        assert not fits, f"{job.name} could have {more}"


@given(jobs_of(raised=True), pools, configs, st.randoms(use_true_random=False))
def test_the_order_of_the_jobs_says_nothing(
    jobs: list[ElasticJob], pool: Pool, config: ElasticConfig, rng: random.Random
) -> None:
    shuffled = jobs.copy()
    rng.shuffle(shuffled)
    one, remembered = decide(pool, jobs, ElasticMemory(), 0.0, config)
    other, also = decide(pool, shuffled, ElasticMemory(), 0.0, config)
    assert sorted(one, key=lambda t: t.job) == sorted(other, key=lambda t: t.job)
    assert dict(remembered.changed_s) == dict(also.changed_s)


@given(jobs_of(), pools)
def test_a_frozen_job_changes_only_to_make_room(jobs: list[ElasticJob], pool: Pool) -> None:
    jobs = [replace(job, leaving=0, priority=0) for job in jobs]
    config = ElasticConfig(freeze_s=30, rebalance_gap=0)
    memory = ElasticMemory({job.name: 0.0 for job in jobs})
    targets, _ = decide(pool, jobs, memory, 29.0, config)
    now = {job.name: job.nodes for job in jobs}
    starts = any(now[t.job] == 0 and t.nodes for t in targets)
    waits = any(now[t.job] == 0 and "leaving" in t.reason for t in targets)
    over = any(taken(jobs, now, kind) > limit(pool, config, kind) for kind in KINDS)
    for target in targets:
        was = now[target.job]
        assert was == 0 or target.nodes <= was
        assert target.nodes >= was or starts or waits or over

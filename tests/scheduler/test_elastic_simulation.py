"""Elastic jobs in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.benchmarks.elastic_simulation import (
    Failure,
    ResourceReservation,
    SimulatedJob,
    SimulatedPool,
    Simulation,
    simulate,
)
from edl.scheduler.elastic_values import ElasticConfig


def slots(count: int, **config: object) -> SimulatedPool:
    rule = ElasticConfig(**{"freeze_s": 0, "rebalance_gap": 1, **config})  # type: ignore[arg-type]
    return SimulatedPool({"slots": count}, config=rule)


def reserved(pool: SimulatedPool, count: int, start_s: float, end_s: float) -> SimulatedPool:
    """With so many slots for online services from `start_s` to `end_s`."""
    steps = ResourceReservation(start_s, {"slots": count}), ResourceReservation(end_s, {"slots": 0})
    return replace(pool, reservations=steps)


def times(found: Simulation) -> list[tuple[float | None, float | None]]:
    return [(run.started_s, run.ended_s) for run in found.runs]


jobs_of = st.lists(
    st.builds(
        lambda work, least, more, priority, submitted, spans: SimulatedJob(
            "", work, least, least + more, priority=priority, submitted_s=submitted,
            start_s=spans, join_s=spans, leave_s=spans, reform_s=spans / 2,
        ),
        st.integers(1, 200), st.integers(1, 3), st.integers(0, 4), st.integers(0, 2),
        st.integers(0, 50), st.integers(0, 5),
    ),
    min_size=1,
    max_size=6,
)  # fmt: skip


class TestSimulation:
    def test_ends_at_the_resolution_of_the_clock(self) -> None:
        late_s = 1e11
        job = SimulatedJob("a", 33.2, 1, 3, submitted_s=late_s)
        (run,) = simulate(slots(3), [job], until_s=late_s + 100).runs
        assert run.state == "succeeded"
        assert run.ended_s == pytest.approx(late_s + 33.2 / 3, abs=1e-3, rel=0)

    def test_elastic_jobs_overlap(self) -> None:
        second = SimulatedJob("B", 10, 1, 2, submitted_s=1, reform_s=1, join_s=2)
        jobs = [SimulatedJob("A", 10, 1, 1), second]
        elastic, gang = (simulate(slots(2, mode=mode), jobs) for mode in ("elastic", "gang"))
        assert times(gang) == [(0, 10), (10, 15)]
        # B alone from 1 to 10; its second node comes at 12, 1 s of standing still: 11 done, 0 left.
        assert times(elastic) == [(0, 10), (1, 11)]
        assert elastic.mean_pending_s() == 0
        assert gang.mean_pending_s() == 4.5
        assert gang.makespan_s() == 15
        assert gang.load("slots", 0, 15) == pytest.approx(2 / 3)

    def test_leaving_nodes_hold_their_slots(self) -> None:
        first = SimulatedJob("A", 1000, 1, 2, leave_s=7)
        second = SimulatedJob("B", 10, 1, 1, submitted_s=20, start_s=2)
        found = simulate(slots(2), [first, second])
        assert found.run("B").started_s == 20 + 7 + 2
        assert found.run("B").pending_s(found.until_s) == 9

    def test_nodes_that_leave_hold_their_slots_though_their_job_has_ended(self) -> None:
        first = SimulatedJob("A", 30, 1, 2, leave_s=20)
        second = SimulatedJob("B", 10, 1, 1, submitted_s=11)  # takes a node of A, which ends at 19
        third = SimulatedJob("C", 10, 1, 1, submitted_s=19)
        found = simulate(slots(2), [first, second, third])
        assert found.run("A").ended_s == 19
        assert max(moment.held["slots"] for moment in found.moments if moment.held) == 2

    def test_reservations_of_online_services(self) -> None:
        job = SimulatedJob("A", 100, 1, 4, leave_s=2, join_s=2)
        found = simulate(reserved(slots(4), 3, 10, 20), [job])
        # 40 until 10; one node until 22, four from then on: 40 + 12 + 48.
        assert times(found) == [(0, 34)]
        assert found.load("slots", 0, 34) == 1
        between = next(m for m in found.moments if m.at_s == 10)
        assert (between.held["slots"], between.reserved["slots"]) == (4, 0)  # not yet let go

    def test_failure_costs_unsaved_work_or_the_job(self) -> None:
        fails = {"failures": (Failure(25),), "checkpoint_s": 10, "join_s": 3, "reform_s": 2}
        job = SimulatedJob("A", 100, 1, 1, **fails)  # type: ignore[arg-type]
        jobs = [replace(job, fail_over=fail_over) for fail_over in (True, False)]
        kept, lost = (simulate(slots(1), [one]).runs[0] for one in jobs)
        assert (lost.state, lost.ended_s, lost.restarts) == ("failed", 25, 0)
        assert (kept.state, kept.restarts) == ("succeeded", 1)
        assert kept.lost_node_s == pytest.approx(5)
        assert kept.ended_s == pytest.approx(25 + 5 + 80)
        hopeless = replace(job, failures=(Failure(25, recoverable=False),))
        assert simulate(slots(1), [hopeless]).runs[0].state == "failed"

    def test_stopped_jobs_end(self) -> None:
        jobs = [SimulatedJob("A", 1e9, 2, 2, stop_s=50), SimulatedJob("B", 1, 1, 1, stop_s=40)]
        found = simulate(slots(2), jobs)
        assert [run.state for run in found.runs] == ["stopped", "stopped"]
        assert found.run("B").pending_s(found.until_s) == 40

    def test_invalid_jobs_and_pools_are_refused(self) -> None:
        job = SimulatedJob("A", 10, 1, 1)
        for jobs in ([job, job], []):
            with pytest.raises(ValueError, match="unique names"):
                simulate(slots(1), jobs)
        with pytest.raises(ValueError, match="interval"):
            simulate(slots(1), [job]).load("slots", 3, 3)

    @given(jobs_of, st.integers(3, 8), st.sampled_from([0.0, 10.0]), st.sampled_from([0.3, 1.0]))
    def test_all_work_is_done_within_the_pool(
        self, drawn: list[SimulatedJob], count: int, freeze_s: float, gap: float
    ) -> None:
        jobs = [replace(job, name=f"job{index}") for index, job in enumerate(drawn)]

        pool = replace(slots(count, freeze_s=freeze_s, rebalance_gap=gap), decide_every_s=20)
        found = simulate(pool, jobs, until_s=1e5)
        assert all(moment.held.get("slots", 0) <= count for moment in found.moments)
        assert [run.state for run in found.runs] == ["succeeded"] * len(jobs)
        for run in found.runs:
            assert run.ended_s is not None
            least_s = run.job.work_node_s / run.job.max_nodes
            assert run.ended_s - run.job.submitted_s >= least_s - 1e-5
        assert simulate(pool, jobs, until_s=1e5) == found

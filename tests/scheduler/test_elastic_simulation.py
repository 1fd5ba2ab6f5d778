"""Elastic jobs in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.scheduler.elastic import ElasticConfig, ElasticJob, Pool
from edl.scheduler.elastic.room import held
from edl.scheduler.elastic_simulation import (
    Failure,
    Reservation,
    SimulatedJob,
    SimulatedPool,
    Simulation,
    simulate,
)


def slots(count: int, **config: object) -> SimulatedPool:
    rule = ElasticConfig(**{"freeze_s": 0, "rebalance_gap": 1, **config})  # type: ignore[arg-type]
    return SimulatedPool({"slots": count}, config=rule)


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
    def test_it_ends_also_when_the_clock_has_no_time_as_short_as_what_is_left(self) -> None:
        late_s = 1e11
        job = SimulatedJob("a", 33.1, 1, 3, submitted_s=late_s, scaling=0.7)
        (run,) = simulate(slots(3), [job], until_s=late_s + 100).runs
        assert run.state == "succeeded"
        assert run.ended_s == pytest.approx(late_s + 33.1 / 3**0.7, abs=1e-3, rel=0)

    def test_one_job_takes_its_start_and_its_work(self) -> None:
        found = simulate(slots(2), [SimulatedJob("a", 20, 1, 2, submitted_s=5, start_s=3)])
        assert times(found) == [(8, 18)]
        assert found.makespan_s() == 13
        assert found.mean_pending_s() == 3
        assert found.load("slots", 5, 18) == 1
        assert found.load("slots", 0, 10) == 0.5

    def test_elastic_jobs_overlap_where_gang_scheduling_waits(self) -> None:
        jobs = [
            SimulatedJob("A", 10, 1, 1),
            SimulatedJob("B", 10, 1, 2, submitted_s=1, reform_s=1, join_s=2),
        ]
        elastic, gang = (simulate(slots(2, mode=mode), jobs) for mode in ("elastic", "gang"))
        assert times(gang) == [(0, 10), (10, 15)]
        # B alone from 1 to 10; its second node comes at 12, 1 s of standing still: 11 done, 0 left.
        assert times(elastic) == [(0, 10), (1, 11)]
        assert elastic.mean_pending_s() == 0
        assert gang.mean_pending_s() == 4.5

    def test_a_change_costs_the_time_to_form_a_world(self) -> None:
        jobs = [SimulatedJob("A", 10, 1, 1), SimulatedJob("B", 30, 1, 2, reform_s=3, join_s=1)]
        found = simulate(slots(2), jobs)
        # 10 are done at 10, 11 at 11; until 14 it stands still; two nodes do the other 19.
        assert times(found)[1] == (0, 14 + 19 / 2)
        assert found.run("B").changes == 1

    def test_a_node_that_leaves_holds_its_place_and_one_that_waits_waits_for_it(self) -> None:
        jobs = [
            SimulatedJob("A", 1000, 1, 2, leave_s=7),
            SimulatedJob("B", 10, 1, 1, submitted_s=20, start_s=2),
        ]
        found = simulate(slots(2), jobs)
        assert found.run("B").started_s == 20 + 7 + 2
        assert found.run("B").pending_s(found.until_s) == 9

    def test_an_online_service_gets_what_it_wants_and_gives_it_back(self) -> None:
        job = SimulatedJob("A", 100, 1, 4, leave_s=2, join_s=2)
        pool = replace(
            slots(4), reservations=(Reservation(10, {"slots": 3}), Reservation(20, {"slots": 0}))
        )
        found = simulate(pool, [job])
        # 40 until 10; one node until 22, four from then on: 40 + 12 + 48.
        assert times(found) == [(0, 34)]
        assert found.load("slots", 0, 34) == 1
        between = next(m for m in found.moments if m.at_s == 10)
        assert (between.held["slots"], between.reserved["slots"]) == (4, 0)  # not yet let go

    def test_a_job_that_is_stopped_for_a_service_goes_on_where_it_was(self) -> None:
        pool = replace(
            slots(1), reservations=(Reservation(10, {"slots": 1}), Reservation(30, {"slots": 0}))
        )
        found = simulate(pool, [SimulatedJob("A", 20, 1, 1)])
        assert times(found) == [(0, 40)]

    def test_a_failure_ends_a_job_without_fail_over_and_costs_the_other_what_was_not_saved(
        self,
    ) -> None:
        job = SimulatedJob(
            "A", 100, 1, 1, failures=(Failure(25),), checkpoint_s=10, join_s=3, reform_s=2
        )
        kept, lost = (
            simulate(slots(1), [replace(job, fail_over=f)]).runs[0] for f in (True, False)
        )
        assert (lost.state, lost.ended_s, lost.restarts) == ("failed", 25, 0)
        assert (kept.state, kept.restarts) == ("succeeded", 1)
        assert kept.lost_node_s == pytest.approx(5)
        assert kept.ended_s == pytest.approx(25 + 5 + 80)

    def test_a_fault_of_the_job_itself_ends_it_all_the_same(self) -> None:
        job = SimulatedJob("A", 100, 1, 1, failures=(Failure(25, recoverable=False),))
        assert simulate(slots(1), [job]).runs[0].state == "failed"

    def test_nothing_breaks_while_nothing_runs(self) -> None:
        job = SimulatedJob("A", 10, 1, 1, submitted_s=5, failures=(Failure(3), Failure(99)))
        assert simulate(slots(1), [replace(job, fail_over=False)]).runs[0].state == "succeeded"

    def test_who_takes_a_job_away_ends_its_waiting(self) -> None:
        jobs = [SimulatedJob("A", 1e9, 2, 2, stop_s=50), SimulatedJob("B", 1, 1, 1, stop_s=40)]
        found = simulate(slots(2), jobs)
        assert [run.state for run in found.runs] == ["stopped", "stopped"]
        assert found.run("B").pending_s(found.until_s) == 40

    def test_a_rule_that_is_asked_now_and_then_lets_jobs_wait(self) -> None:
        pool = replace(slots(1), decide_every_s=15, prompt=False)
        assert times(simulate(pool, [SimulatedJob("A", 10, 1, 1, submitted_s=1)])) == [(15, 25)]

    def test_a_job_that_the_pool_cannot_hold_waits_until_the_end(self) -> None:
        found = simulate(slots(1), [SimulatedJob("A", 10, 2, 2)], until_s=30)
        assert (found.runs[0].state, found.until_s) == ("waiting", 30)
        assert found.runs[0].pending_s(found.until_s) == 30

    def test_jobs_and_pools_that_make_no_sense_are_refused(self) -> None:
        job = SimulatedJob("A", 10, 1, 1)
        with pytest.raises(ValueError, match="name of their own"):
            simulate(slots(1), [job, job])
        with pytest.raises(ValueError, match="name of their own"):
            simulate(slots(1), [])
        with pytest.raises(ValueError, match="work_node_s"):
            replace(job, work_node_s=0)
        with pytest.raises(ValueError, match="stop_s"):
            replace(job, stop_s=0)
        with pytest.raises(ValueError, match="times must be"):
            replace(job, leave_s=-1)
        with pytest.raises(ValueError, match="decide_every_s"):
            SimulatedPool({"slots": 1}, decide_every_s=0)
        with pytest.raises(ValueError, match="interval"):
            simulate(slots(1), [job]).load("slots", 3, 3)

    @settings(max_examples=40)
    @given(jobs_of, st.integers(3, 8), st.sampled_from([0.0, 10.0]), st.sampled_from([0.3, 1.0]))
    def test_all_work_is_done_within_the_pool_whatever_comes(
        self, drawn: list[SimulatedJob], count: int, freeze_s: float, gap: float
    ) -> None:
        jobs = [replace(job, name=f"job{index}") for index, job in enumerate(drawn)]

        def fits(_: float, views: Sequence[ElasticJob], pool: Pool) -> None:
            total = sum(held(v, v.nodes + v.leaving).get("slots", 0) for v in views)
            assert total <= pool.capacity["slots"]

        pool = replace(slots(count, freeze_s=freeze_s, rebalance_gap=gap), decide_every_s=20)
        found = simulate(pool, jobs, until_s=1e5, on_decision=fits)
        assert [run.state for run in found.runs] == ["succeeded"] * len(jobs)
        for run in found.runs:
            assert run.ended_s is not None
            least_s = run.job.work_node_s / run.job.max_nodes
            assert run.ended_s - run.job.submitted_s >= least_s - 1e-5
        assert simulate(pool, jobs, until_s=1e5) == found

"""Autoscaling, and how fleets follow it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.deploy.operator.teachers.replica_count import room_for
from edl.scheduler.autoscale import (
    AutoscaleConfig,
    AutoscaleMemory,
    ServiceLoad,
    StudentLoad,
    WaitTotals,
    decide,
    load_of,
    may_begin,
    resumed,
)
from edl.scheduler.elastic_values import Pool

CONFIG = AutoscaleConfig(max=10, freeze_s=10, up_after_s=4, down_after_s=20, idle_to_zero_s=30)

CEILING = replace(CONFIG, price_per_teacher_hour=0.1, cost_ceiling_per_hour=0.3)
#: One student that needs 2.5 teachers' time.
STEADY = ServiceLoad(1, serving=3, wanted=3, t_t_s=0.05, demand_per_s=50.0)


class SimulatedAutoscaler:
    """Decides once a second and keeps what it has decided."""

    def __init__(self, config: AutoscaleConfig = CONFIG, count: int = 3) -> None:
        self.config = config
        self.now = 100.0
        self.memory = AutoscaleMemory(desired=count)

    def run(self, view: ServiceLoad, for_s: float, blocked: float = 0.0) -> int:
        """Let time pass, for `blocked` of which students pause; the number at its end."""
        end, paused_s = self.now + for_s, self.memory.blocked_s
        while self.now < end:
            self.now += 1.0
            paused_s += blocked * view.students
            view = replace(view, blocked_s=paused_s)
            _, self.memory = decide(view, self.memory, self.now, self.config)
        return self.memory.desired or 0


class TestAutoscale:
    def test_starving_counts_at_once(self) -> None:
        autoscaler = SimulatedAutoscaler()
        quick = replace(STEADY, wanted=6, starving=1, demand_per_s=110.0)
        assert autoscaler.run(quick, 1.0) == 6
        autoscaler = SimulatedAutoscaler(count=4)
        assert autoscaler.run(replace(STEADY, starving=1, wanted=9, serving=2), 3.0) == 4

    def test_falls_when_labels_are_plenty(self) -> None:
        autoscaler = SimulatedAutoscaler(count=8)
        shared = replace(STEADY, students=8, serving=8, wanted=8, demand_per_s=30.0)
        assert autoscaler.run(shared, 60.0) == 8, "nobody says that there is too much"
        assert autoscaler.run(shared, 60.0, blocked=0.8) == 2  # 1.5 teachers' time, and a quarter

    def test_start_and_recovery_take_nothing_away(self) -> None:
        empty = ServiceLoad(0, serving=3, starting=1)
        assert decide(empty, AutoscaleMemory(), 0.0, CONFIG)[0].count == 4
        assert decide(replace(empty, serving=50), AutoscaleMemory(), 0.0, CONFIG)[0].count == 10
        autoscaler = SimulatedAutoscaler(count=5)
        assert autoscaler.run(ServiceLoad(0, serving=1, recovering=True), 300.0) == 5
        recovers = replace(STEADY, wanted=7, recovering=True, demand_per_s=0.0)
        assert autoscaler.run(recovers, 20.0) == 7

    @pytest.mark.parametrize(("config", "keyword"), [(CONFIG, "max"), (CEILING, "ceiling")])
    def test_reason_names_the_bound(self, config: AutoscaleConfig, keyword: str) -> None:
        autoscaler = SimulatedAutoscaler(config)
        autoscaler.run(ServiceLoad(4, serving=3, wanted=40, starving=4), 1.0)
        autoscaler.run(ServiceLoad(4, serving=10, wanted=40), 30.0)
        told, _ = decide(ServiceLoad(4, 10, wanted=40), autoscaler.memory, autoscaler.now, config)
        assert told.count == config.limit
        assert keyword in told.reason
        again = resumed(told.count, told.reason, autoscaler.now)
        assert decide(ServiceLoad(4, 10, wanted=40), again, autoscaler.now, config)[0] == told


COUNTS = st.integers(0, 50)


class TestServiceLoad:
    def test_load_of_students(self) -> None:
        quick = StudentLoad(want=5, t_t_s=0.04, t_s_s=0.01, starves=True)
        slow = StudentLoad(want=1, t_t_s=0.02, t_s_s=0.04, starves=False)
        load = load_of((quick, slow), WaitTotals(3.0, 1.0), serving=4, starting=1)
        assert (load.students, load.wanted, load.starving) == (2, 6, 1)
        assert (load.serving, load.starting, load.starved_s, load.blocked_s) == (4, 1, 3.0, 1.0)
        assert load.demand_per_s == pytest.approx(125.0)
        assert load.ratio == pytest.approx(4.0 + 0.5)

    def test_load_sums(self) -> None:
        known = StudentLoad(want=2, t_t_s=0.02, t_s_s=0.01, starves=False)
        for unknown in (known._replace(t_t_s=0.0), known._replace(t_s_s=0.0)):
            load = load_of((known, unknown), WaitTotals(), serving=1)
            assert load.ratio is None
            assert load.wanted == 4
        assert load_of((), WaitTotals(), serving=3).ratio is None
        waits = WaitTotals(5.0, 7.0).grown(WaitTotals(1.0, 1.0), WaitTotals(3.0, 1.5))
        assert waits == WaitTotals(7.0, 7.5)
        assert waits.grown(WaitTotals(9.0, 9.0), WaitTotals(0.0, 9.5)) == WaitTotals(7.0, 8.0)

    @given(COUNTS, COUNTS, COUNTS)
    def test_when_a_leader_may_begin(self, students: int, holding: int, teachers: int) -> None:
        there = {"students": students, "holding": holding, "teachers": teachers}
        assert may_begin(recovering=False, **there)
        begins = may_begin(recovering=True, **there)
        assert begins == (students > 0 and holding == teachers == 0)


class TestTeacherCount:
    def test_promised_room(self) -> None:
        pool = Pool({"cpu": 8.0, "gpu": 2.0}, {"cpu": 1.0})
        need = {"cpu": 1.0}
        assert room_for(pool, need, 1.0) == 7
        assert room_for(pool, need, 1.0, [(2, {"cpu": 2.0, "tape drives": 1.0})]) == 3
        assert (
            room_for(
                pool,
                need,
                1.0,
                [(2, {"cpu": 2.0}), (1, need)],
            )
            == 2
        )
        assert room_for(pool, need, 1.0, [(-3, {"cpu": 2.0})]) == 7, "3 still leave"
        assert room_for(pool, need, 1.0, [(9, {"cpu": 9.0})]) == 0

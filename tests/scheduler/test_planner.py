"""The cost model and plans made with it."""

from __future__ import annotations

from dataclasses import replace

import hypothesis
import pytest
from hypothesis import strategies as st

from edl.benchmarks.paper import simulations
from edl.scheduler import pipeline_model
from edl.scheduler.cluster import Cluster, DeviceKind, DeviceLink, DeviceRate, Distillation
from edl.scheduler.pipeline_model import (
    STUDENT_BATCH_S,
    DeviceGroup,
    PlannedMesh,
    room_for,
    throughput,
)
from edl.scheduler.planner import fleets, plan

N_TRAINING = {1: 14.16, 2: 28.44, 4: 55.17, 8: 101.59, 16: 168.42}
ONLINE = {1: 5.92, 2: 11.51, 4: 21.76, 8: 37.87, 16: 59.94}


def cluster_of(latency_s: float = 0.0) -> Cluster:
    far = DeviceLink(1e12, latency_s)
    return Cluster((DeviceKind("v100", 8, link=far), DeviceKind("p4", 56, link=far)))


def job_with(**changes: object) -> Distillation:
    base = Distillation(
        "x",
        samples=100_000,
        batch=(32,),
        student={"v100": DeviceRate(samples_per_s=350)},
        teacher={"p4": DeviceRate(samples_per_s=70)},
        sample_bytes=150_528,
        label_bytes=4000,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def predicted(
    work: Distillation,
    teachers: int,
    students: int = 1,
    *,
    there: Cluster | None = None,
    rows: int = 32,
) -> pipeline_model.Prediction:
    """What a mesh of V100 students and P4 teachers does."""
    mesh = PlannedMesh("v100", students, (DeviceGroup("p4", teachers),), rows)
    return pipeline_model.predict(there or cluster_of(), work, mesh)


rates = st.floats(0.01, 1e4)
RATES = st.builds(DeviceRate, seconds_per_sample=st.floats(1e-4, 1), jitter=st.floats(0, 0.5))


class TestCostModel:
    @pytest.mark.parametrize("cells", [N_TRAINING, ONLINE])
    def test_two_cells_predict_the_others(self, cells: dict[int, float]) -> None:
        law = simulations.Scaling.through((1, cells[1]), (16, cells[16]))
        assert law.rate(1) == pytest.approx(cells[1])
        assert law.rate(16) == pytest.approx(cells[16])
        for cores in (2, 4, 8):
            assert law.rate(cores) == pytest.approx(cells[cores], rel=0.1)

    def test_rates_from_cells_of_tables(self) -> None:
        one = (1, 5.0)
        for cells in ((one, (1, 6.0)), (one, (4, 4.0)), (one, (4, 25.0)), ((0, 1.0), (2, 1.0))):
            with pytest.raises(ValueError, match=r"cores|Amdahl"):
                simulations.Scaling.through(*cells)
        labelling = simulations.labelling_rate(online=46.04, alone=57.14)
        assert labelling == pytest.approx(237.0, abs=0.1)
        with pytest.raises(ValueError, match="online < alone"):
            simulations.labelling_rate(57.14, 46.04)

    @hypothesis.given(st.integers(1, 300), st.integers(1, 300))
    def test_all_teachers_are_dealt_out(self, teachers: int, students: int) -> None:
        groups = pipeline_model.divide_teachers((DeviceGroup("p4", teachers),), students)
        assert sum(number for number, _ in groups) == students
        dealt = sum(number * part.count for number, parts in groups for part in parts)
        assert dealt == pytest.approx(teachers)

    def test_narrow_windows_of_far_teachers_are_the_slowest_stage(self) -> None:
        found = predicted(job_with(window_max=2), 5, there=cluster_of(latency_s=1.0))
        assert found.stages[0].name == "round trips"
        assert found.samples_per_s == pytest.approx(5 * 32 * 2 / (32 / 70 + 2.0), rel=1e-3)

    def test_transfers_take_the_part_of_a_link_that_batches_can_use(self) -> None:
        there = Cluster((DeviceKind("v100", 8), DeviceKind("p4", 56, link=DeviceLink(1e7))))
        found = predicted(job_with(window=1, window_max=1), 1, there=there)
        transfer_s = 32 * (150_528 + 4000) / (pipeline_model.LINK_SHARE * 1e7)
        assert found.stages[0].name == "round trips"
        assert found.samples_per_s == pytest.approx(32 / (32 / 70 + transfer_s), rel=1e-3)

    def test_fixed_costs_per_batch(self) -> None:
        given = job_with(
            student={"v100": DeviceRate(samples_per_s=350, batch_overhead_s=0.1)},
            teacher={"p4": DeviceRate(samples_per_s=1e6)},
        )
        found = predicted(given, 1)
        step_s = 32 / 350 + 0.1 + STUDENT_BATCH_S
        assert found.samples_per_s == pytest.approx(32 / step_s, rel=1e-6)
        assert given.step_s("v100", 32) == pytest.approx(32 / 350 + 0.1)
        both = replace(given, teacher={"v100": DeviceRate(samples_per_s=700)})
        assert both.online_s("v100", 32) == pytest.approx(32 / 350 + 0.1 + 32 / 700)

    def test_small_buffer_with_jitter(self) -> None:
        uneven = job_with(
            student={"v100": DeviceRate(samples_per_s=350, jitter=0.5)},
            teacher={"p4": DeviceRate(samples_per_s=70, jitter=0.5)},
        )
        roomy = predicted(uneven, 5)
        small = predicted(replace(uneven, buffer_bytes=2 * 32 * 154_528.0), 5)
        assert small.thresholds.upper == 2 < small.thresholds.ideal == roomy.thresholds.upper
        assert 0.6 * 350 < small.samples_per_s < 0.99 * roomy.samples_per_s
        assert small.stages[0].name == "pauses of a small buffer"
        assert roomy.lost > 0
        assert 0 <= small.thresholds.lower < small.thresholds.upper

    @hypothesis.given(rates, rates, st.floats(0, 1e3), st.floats(0, 1e3))
    def test_buffer_throughput(self, made: float, used: float, noise: float, room: float) -> None:
        got = throughput(made, used, noise, room)
        assert 1 / (1 / made + 1 / used) <= got * (1 + 1e-9)
        assert got <= min(made, used) * (1 + 1e-9)
        assert throughput(made, used, noise, 2 * room + 1) >= got * (1 - 1e-9)

    @hypothesis.given(rates, rates, st.floats(1e-3, 10))
    def test_room_suffices(self, made: float, used: float, variance: float) -> None:
        room = room_for(made, used, variance)
        assert throughput(made, used, variance, room) >= 0.985 * min(made, used)

    @hypothesis.given(st.integers(1, 40), st.integers(1, 8), RATES, RATES, st.integers(1, 128))
    def test_more_teachers_are_not_slower(
        self, teachers: int, students: int, teacher: DeviceRate, student: DeviceRate, rows: int
    ) -> None:
        given = job_with(student={"v100": student}, teacher={"p4": teacher}, students=students)
        few = predicted(given, teachers, students, rows=rows)
        more = predicted(given, 2 * teachers, students, rows=rows)
        assert more.samples_per_s >= 0.98 * few.samples_per_s
        assert few.samples_per_s <= few.stages[0].samples_per_s * (1 + 1e-9)
        assert few.samples_per_s <= students / student.sample_s * (1 + 1e-9)
        assert 0 <= few.thresholds.lower < few.thresholds.upper

    def test_invalid_meshes_are_refused(self) -> None:
        for kind, teachers, message in (
            ("v100", (), "at least one student and one teacher"),
            ("v100", (DeviceGroup("v100", 1),), "no rate of the teacher on 'v100'"),
            ("a100", (DeviceGroup("p4", 1),), "no devices 'a100'"),
        ):
            with pytest.raises(ValueError, match=message):
                pipeline_model.predict(cluster_of(), job_with(), PlannedMesh(kind, 1, teachers, 32))


V100 = DeviceKind("v100", 8, price_per_hour=2.5)
P4 = DeviceKind("p4", 56, price_per_hour=0.3, tenure="spot")
CLUSTER = Cluster((V100, P4))

JOB = job_with(
    samples=1_000_000,
    student={"v100": DeviceRate(samples_per_s=345)},
    teacher={"p4": DeviceRate(70.0, micro_batch=8), "v100": DeviceRate(samples_per_s=800)},
    students=8,
    epochs=10,
)


class TestPlanner:
    def test_teachers_follow_the_ratio(self) -> None:
        made = plan(CLUSTER, JOB)
        assert made.mesh is not None
        assert made.prediction is not None
        assert (made.student, made.students, made.rows) == ("v100", 8, 32)
        assert made.mesh.teacher_groups == (DeviceGroup("p4", 40),)
        assert made.needed == 5
        assert made.micro_batches == {"p4": 8}
        assert made.prediction.stages[0].name == "the student's step"
        assert made.prediction.stages[1].name == "the teachers"
        assert made.verdict.worth
        assert made.verdict.take == "mesh"
        size = JOB.batch_bytes(32)
        assert made.upper_bytes == int(made.prediction.thresholds.upper * size)
        assert 0 <= made.lower_bytes < made.upper_bytes
        estimate = made.estimate("mesh")
        assert estimate.cost_per_hour == pytest.approx(8 * 2.5 + 40 * 0.3)
        assert estimate.total_s == pytest.approx(10 * estimate.epoch_s)
        assert estimate.epoch_s == pytest.approx(1e6 / estimate.samples_per_s, rel=0.01)
        assert estimate.cost == pytest.approx(estimate.cost_per_hour * estimate.total_s / 3600)

    def test_labels_are_kept_where_inputs_are_fixed_and_light_teachers_need_no_mesh(self) -> None:
        light = dict.fromkeys(("p4", "v100"), DeviceRate(samples_per_s=1e6))
        made = plan(CLUSTER, replace(JOB, teacher=light))
        assert not made.verdict.worth
        assert made.verdict.take == "Online"
        fixed = replace(JOB, fixed_inputs=True, epochs=90)
        made = plan(CLUSTER, fixed)
        store, mesh = made.estimate("offline store"), made.estimate("mesh")
        alone = made.estimate("N-training")
        assert made.verdict.take == "offline store"
        assert alone.cost < store.cost < mesh.cost
        assert store.total_s <= mesh.total_s * 1.001
        for epochs in (1, 90):
            made = plan(CLUSTER, replace(fixed, epochs=epochs))
            alone, _, store, mesh = made.estimates
            assert store.teachers == mesh.teachers
            teachers_per_hour = mesh.cost_per_hour - alone.cost_per_hour
            mean = alone.cost_per_hour + teachers_per_hour * mesh.epoch_s / store.total_s
            assert store.cost_per_hour == pytest.approx(mean)
            assert store.cost == pytest.approx(store.cost_per_hour * store.total_s / 3600)
        assert "inputs change" in plan(CLUSTER, JOB).estimate("offline store").why_not

    def test_a_slow_loader_leaves_the_device_time_for_the_teacher(self) -> None:
        made = plan(CLUSTER, replace(JOB, source_samples_per_s=100))
        assert made.estimate("Online").samples_per_s == pytest.approx(8 * 100)
        assert made.verdict.take == "Online"

    def test_budget_and_deadline(self) -> None:
        fastest = plan(CLUSTER, JOB).estimate("mesh")
        cheapest = plan(CLUSTER, JOB, aim="cheapest").estimate("mesh")
        assert cheapest.cost < 1.01 * fastest.cost
        dear = replace(V100, price_per_hour=0.01), P4
        cheap = plan(Cluster(dear), JOB, aim="cheapest").estimate("mesh")
        assert cheap.teachers < 40
        late = replace(JOB, deadline_s=0.9 * cheap.total_s)
        in_time = plan(Cluster(dear), late, aim="cheapest").estimate("mesh")
        assert in_time.total_s <= 0.9 * cheap.total_s
        poor = replace(JOB, budget=1e-3)
        assert "with a teacher keeps the budget" in plan(CLUSTER, poor).verdict.reasons[-1]
        hurried = replace(JOB, deadline_s=1.0)
        assert "with a teacher keeps the deadline" in plan(CLUSTER, hurried).verdict.reasons[-1]
        # Some method keeps each limit, but none keeps both.
        both = replace(late, budget=0.99 * cheap.cost)
        reason = plan(Cluster(dear), both, aim="cheapest").verdict.reasons[-1]
        assert "with a teacher keeps both the deadline and the budget" in reason

    def test_cheap_labels_come_first(self) -> None:
        cluster = Cluster((V100, replace(P4, count=20), DeviceKind("t4", 40, price_per_hour=1.0)))
        job = replace(JOB, teacher={"p4": DeviceRate(70.0), "t4": DeviceRate(samples_per_s=140)})
        made = plan(cluster, job)
        assert made.mesh is not None
        assert made.mesh.teacher_groups[0] == DeviceGroup("p4", 20)
        assert made.mesh.teacher_groups[1].kind == "t4"
        assert made.estimate("mesh").samples_per_s >= 0.99 * 8 * 345
        # What a student's device is needed for, it cannot label besides.
        for mesh in fleets(CLUSTER, JOB, "v100", 32):
            assert "v100" not in [group.kind for group in mesh.teacher_groups]

    def test_memory_limits(self) -> None:
        gib = 2.0**30
        small = Cluster((replace(V100, memory_bytes=16 * gib), replace(P4, memory_bytes=8 * gib)))
        large = DeviceRate(samples_per_s=345, memory_bytes=2 * gib, memory_per_sample_bytes=gib / 4)
        made = plan(small, replace(JOB, batch=(32, 64), student={"v100": large}))
        assert made.rows == 32
        with pytest.raises(ValueError, match="v100 have too little memory"):
            plan(small, replace(JOB, batch=(64,), student={"v100": large}))
        heavy = dict.fromkeys(("p4", "v100"), DeviceRate(samples_per_s=70, memory_bytes=9 * gib))
        made = plan(small, replace(JOB, student={"v100": large}, teacher=heavy))
        assert made.mesh is None
        assert "both models need 19 GiB" in made.estimate("Online").why_not
        assert made.verdict.take is None
        # A device that labels 8 rows at once needs no more memory for them.
        light = replace(large, memory_bytes=gib, micro_batch=8)
        made = plan(small, replace(JOB, student={"v100": large}, teacher={"v100": light}))
        assert made.verdict.take == "Online"

    def test_students_are_always_available(self) -> None:
        with pytest.raises(ValueError, match="v100 have an availability below 100 %"):
            plan(Cluster((replace(V100, availability=0.99), P4)), JOB)

    def test_requested_numbers_of_devices(self) -> None:
        assert plan(CLUSTER, JOB, teachers=56).estimate("mesh").teachers == 56
        made = plan(CLUSTER, JOB, teachers=57)
        assert made.mesh is None
        assert "not have 57 devices" in made.verdict.reasons[0]

    @hypothesis.given(
        st.tuples(st.integers(1, 8), st.integers(1, 60), st.integers(1, 300)),
        st.tuples(*[st.floats(0, 5)] * 3),
        st.tuples(*[st.builds(DeviceRate, samples_per_s=st.floats(1, 1000))] * 3),
        st.floats(0.1, 1),
        st.booleans(),
    )
    def test_no_plan_promises_too_much(
        self,
        counts: list[int],
        prices: list[float],
        speeds: list[DeviceRate],
        up: float,
        fixed: bool,
    ) -> None:
        v100 = DeviceKind("v100", counts[0], prices[0])
        p4 = DeviceKind("p4", counts[1], prices[1], availability=up)
        core = DeviceKind("core", counts[2], prices[2], roles=("teacher",))
        cluster = Cluster((v100, p4, core))
        teachers = {"p4": speeds[1], "core": speeds[2]}
        job = replace(JOB, students=counts[0], student={"v100": speeds[0]}, teacher=teachers)
        made = plan(cluster, replace(job, fixed_inputs=fixed))
        assert made.mesh is not None
        assert made.prediction is not None
        labels = 0.0
        for group in made.mesh.teacher_groups:
            kind = cluster.kind(group.kind)
            assert group.count <= kind.count
            labels += group.count * kind.availability / teachers[group.kind].sample_s
        rate = made.prediction.samples_per_s
        assert rate <= min(labels, counts[0] / speeds[0].sample_s) * (1 + 1e-9)
        assert made.estimate("N-training").total_s <= made.estimate("mesh").total_s * (1 + 1e-9)
        assert made.verdict.take in ("mesh", "offline store")

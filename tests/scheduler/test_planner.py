"""Plans: which fleet is taken, what other ways would bring, and when the mesh is not worth it."""

from __future__ import annotations

from dataclasses import replace

import hypothesis
import pytest
from hypothesis import strategies as st

from edl.scheduler.cluster import Cluster, DeviceKind
from edl.scheduler.cost_model import Team, labelling_rate
from edl.scheduler.fleets import fleets
from edl.scheduler.planner import plan
from edl.scheduler.workload import Job, Rate

V100 = DeviceKind("v100", 8, price_per_hour=2.5)
P4 = DeviceKind("p4", 56, price_per_hour=0.3, tenure="spot")
CLUSTER = Cluster((V100, P4))
JOB = Job(
    "x",
    samples=1_000_000,
    batch=(32,),
    student={"v100": Rate(samples_per_s=345)},
    teacher={"p4": Rate(samples_per_s=70, micro_batch=8), "v100": Rate(samples_per_s=800)},
    sample_bytes=150_528,
    label_bytes=4000,
    students=8,
    epochs=10,
)


def test_as_many_teachers_as_the_ratio_says_and_no_more() -> None:
    made = plan(CLUSTER, JOB)
    assert made.mesh is not None
    assert made.prediction is not None
    assert (made.student, made.students, made.rows) == ("v100", 8, 32)
    assert made.mesh.teams == (Team("p4", 40),)
    assert made.needed == 5
    assert made.micro_batches == {"p4": 8}
    assert made.prediction.stages[0].name == "the student's step"
    assert made.prediction.stages[1].name == "the teachers"
    assert made.verdict.worth
    assert made.verdict.take == "mesh"
    size = JOB.batch_bytes(32)
    assert made.upper_bytes == int(made.prediction.thresholds.upper * size)
    assert 0 <= made.lower_bytes < made.upper_bytes


def test_costs_are_of_all_devices_for_all_epochs() -> None:
    way = plan(CLUSTER, JOB).way("mesh")
    assert way.cost_per_hour == pytest.approx(8 * 2.5 + 40 * 0.3)
    assert way.total_s == pytest.approx(10 * way.epoch_s)
    assert way.epoch_s == pytest.approx(1e6 / way.samples_per_s, rel=0.01)
    assert way.cost == pytest.approx(way.cost_per_hour * way.total_s / 3600)


def test_online_is_better_where_teachers_are_few_and_the_crossing_is_named() -> None:
    # Table 2 of the paper: a P4 trains, 8 cores label at 4.46 img/s each; Online has 46.04 img/s.
    cluster = Cluster((DeviceKind("p4", 1, 0.5), DeviceKind("core", 8, 0.01)))
    job = replace(
        JOB,
        batch=(64,),
        students=1,
        student={"p4": Rate(samples_per_s=57.14)},
        teacher={
            "p4": Rate(samples_per_s=labelling_rate(46.04, 57.14)),
            "core": Rate(samples_per_s=4.46),
        },
    )
    made = plan(cluster, job)
    assert made.way("mesh").samples_per_s == pytest.approx(35.68, rel=0.01)
    assert made.way("Online").samples_per_s == pytest.approx(46.04, rel=1e-6)
    assert not made.verdict.worth
    assert made.verdict.take == "Online"
    assert "from 11 teachers on the mesh is faster: 8 are used" in made.verdict.reasons[0]
    more = replace(cluster, devices=(cluster.devices[0], replace(cluster.devices[1], count=12)))
    assert plan(more, job).verdict.worth


def test_a_light_teacher_is_no_reason_for_a_mesh() -> None:
    light = replace(JOB, teacher={name: Rate(samples_per_s=1e6) for name in ("p4", "v100")})
    made = plan(CLUSTER, light)
    assert not made.verdict.worth
    assert made.verdict.take == "Online"
    assert "as fast as Online" in made.verdict.reasons[0]


def test_labels_are_kept_where_inputs_are_the_same() -> None:
    fixed = replace(JOB, fixed_inputs=True, epochs=90)
    made = plan(CLUSTER, fixed)
    store, mesh, alone = (made.way(name) for name in ("offline store", "mesh", "N-training"))
    assert made.verdict.take == "offline store"
    assert any("labels that are kept save" in reason for reason in made.verdict.reasons)
    assert alone.cost < store.cost < mesh.cost
    assert store.total_s <= mesh.total_s * 1.001
    assert "inputs change" in plan(CLUSTER, JOB).way("offline store").why_not


def test_a_budget_and_a_deadline_choose_among_fleets() -> None:
    fastest = plan(CLUSTER, JOB).way("mesh")
    cheapest = plan(CLUSTER, JOB, aim="cheapest").way("mesh")
    assert cheapest.cost < 1.01 * fastest.cost
    dear = replace(V100, price_per_hour=0.01), P4
    cheap = plan(Cluster(dear), JOB, aim="cheapest").way("mesh")
    assert cheap.teachers < 40
    late = replace(JOB, deadline_s=0.9 * cheap.total_s)
    assert plan(Cluster(dear), late, aim="cheapest").way("mesh").total_s <= 0.9 * cheap.total_s
    poor = replace(JOB, budget=1e-3)
    assert "nothing keeps the budget" in plan(CLUSTER, poor).verdict.reasons[-1]
    hurried = replace(JOB, deadline_s=1.0)
    assert "nothing keeps the deadline" in plan(CLUSTER, hurried).verdict.reasons[-1]


def test_cheap_labels_come_first_and_others_fill_up() -> None:
    cluster = Cluster((V100, replace(P4, count=20), DeviceKind("t4", 40, price_per_hour=1.0)))
    job = replace(JOB, teacher={"p4": Rate(samples_per_s=70), "t4": Rate(samples_per_s=140)})
    made = plan(cluster, job)
    assert made.mesh is not None
    assert made.mesh.teams[0] == Team("p4", 20)
    assert made.mesh.teams[1].kind == "t4"
    assert made.way("mesh").samples_per_s >= 0.99 * 8 * 345
    # What a student's device is needed for, it cannot label besides.
    assert all(
        team.kind != "v100" for mesh in fleets(CLUSTER, JOB, "v100", 32) for team in mesh.teams
    )


def test_what_does_not_fit_into_memory_is_left_out() -> None:
    gib = 2.0**30
    small = Cluster((replace(V100, memory_bytes=16 * gib), replace(P4, memory_bytes=8 * gib)))
    large = Rate(samples_per_s=345, memory_bytes=2 * gib, memory_per_sample_bytes=gib / 4)
    made = plan(small, replace(JOB, batch=(32, 64), student={"v100": large}))
    assert made.rows == 32
    with pytest.raises(ValueError, match="v100 have too little memory"):
        plan(small, replace(JOB, batch=(64,), student={"v100": large}))
    heavy = {name: Rate(samples_per_s=70, memory_bytes=9 * gib) for name in ("p4", "v100")}
    made = plan(small, replace(JOB, student={"v100": large}, teacher=heavy))
    assert made.mesh is None
    assert "both models need 19 GiB" in made.way("Online").why_not
    assert made.verdict.take is None


def test_so_many_teachers_as_are_asked_for() -> None:
    for teachers in (8, 40, 56):
        assert plan(CLUSTER, JOB, teachers=teachers).way("mesh").teachers == teachers
    made = plan(CLUSTER, JOB, teachers=57)
    assert made.mesh is None
    assert "no 57 devices" in made.verdict.reasons[0]


def test_who_cannot_train_is_said() -> None:
    with pytest.raises(ValueError, match="of v100 there are 8, not 9; p4 are no students"):
        plan(CLUSTER, replace(JOB, students=9))


@hypothesis.given(
    counts=st.tuples(st.integers(1, 8), st.integers(1, 60), st.integers(1, 300)),
    prices=st.tuples(*[st.floats(0, 5)] * 3),
    speeds=st.tuples(*[st.floats(1, 1000)] * 3),
    availability=st.floats(0.1, 1),
    fixed=st.booleans(),
)
def test_no_plan_promises_what_its_devices_cannot(
    counts: tuple[int, int, int],
    prices: tuple[float, float, float],
    speeds: tuple[float, float, float],
    availability: float,
    fixed: bool,
) -> None:
    cluster = Cluster(
        (
            DeviceKind("v100", counts[0], prices[0]),
            DeviceKind("p4", counts[1], prices[1], availability=availability),
            DeviceKind("core", counts[2], prices[2], roles=("teacher",)),
        )
    )
    job = replace(
        JOB,
        students=counts[0],
        student={"v100": Rate(samples_per_s=speeds[0])},
        teacher={"p4": Rate(samples_per_s=speeds[1]), "core": Rate(samples_per_s=speeds[2])},
        fixed_inputs=fixed,
    )
    made = plan(cluster, job)
    assert made.mesh is not None
    assert made.prediction is not None
    for team in made.mesh.teams:
        assert team.count <= cluster.kind(team.kind).count
    labels = sum(
        team.count * cluster.kind(team.kind).availability * job.teacher[team.kind].sample_s ** -1
        for team in made.mesh.teams
    )
    rate = made.prediction.samples_per_s
    assert rate <= min(labels, counts[0] * speeds[0]) * (1 + 1e-9)
    assert made.way("N-training").total_s <= made.way("mesh").total_s * (1 + 1e-9)
    assert made.verdict.take in ("mesh", "offline store")

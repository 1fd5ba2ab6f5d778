"""The cost model: cells of the paper's tables, laws of buffers, what a prediction never does."""

from __future__ import annotations

from dataclasses import replace

import hypothesis
import pytest
from hypothesis import strategies as st

from edl.scheduler.buffering import room_for, throughput
from edl.scheduler.cluster import Cluster, DeviceKind, Link
from edl.scheduler.cost_model import (
    Costs,
    Mesh,
    Scaling,
    Team,
    deal,
    labelling_rate,
    online_s,
    predict,
    step_s,
)
from edl.scheduler.workload import Job, Rate

FREE = Costs(0.0, 0.0)
N_TRAINING = {1: 14.16, 2: 28.44, 4: 55.17, 8: 101.59, 16: 168.42}
ONLINE = {1: 5.92, 2: 11.51, 4: 21.76, 8: 37.87, 16: 59.94}


def cluster(teachers: int = 56, students: int = 8, link: Link | None = None) -> Cluster:
    wide = link or Link(1e12)
    return Cluster(
        (DeviceKind("v100", students, link=Link(1e12)), DeviceKind("p4", teachers, link=wide))
    )


def job(**changes: object) -> Job:
    base = Job(
        "x",
        samples=100_000,
        batch=(32,),
        student={"v100": Rate(samples_per_s=350)},
        teacher={"p4": Rate(samples_per_s=70)},
        sample_bytes=150_528,
        label_bytes=4000,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("cells", [N_TRAINING, ONLINE])
def test_two_cells_of_a_table_predict_the_others_within_a_tenth(cells: dict[int, float]) -> None:
    law = Scaling.through((1, cells[1]), (16, cells[16]))
    assert law.rate(1) == pytest.approx(cells[1])
    assert law.rate(16) == pytest.approx(cells[16])
    for cores in (2, 4, 8):
        assert law.rate(cores) == pytest.approx(cells[cores], rel=0.1)


def test_a_law_that_cannot_be_is_refused() -> None:
    for cells in (
        ((1, 5.0), (1, 6.0)),
        ((1, 5.0), (4, 4.0)),
        ((1, 5.0), (4, 25.0)),
        ((0, 1.0), (2, 1.0)),
    ):
        with pytest.raises(ValueError, match=r"cores|Amdahl"):
            Scaling.through(*cells)


def test_the_rate_of_the_p4_follows_from_two_cells_of_table_2() -> None:
    assert labelling_rate(online=46.04, alone=57.14) == pytest.approx(237.0, abs=0.1)
    with pytest.raises(ValueError, match="online < alone"):
        labelling_rate(57.14, 46.04)


@pytest.mark.parametrize(("teachers", "rate"), [(1, 70), (2, 140), (4, 280), (5, 350), (8, 350)])
def test_figure_3_is_linear_until_the_ratio(teachers: int, rate: float) -> None:
    found = predict(cluster(), job(), Mesh("v100", 1, (Team("p4", teachers),), 32), FREE)
    assert found.samples_per_s == pytest.approx(rate, rel=1e-6)
    slowest = "the teachers" if teachers < 5 else "the student's step"
    assert found.stages[0].samples_per_s == pytest.approx(rate, rel=1e-6)
    assert slowest in {stage.name for stage in found.stages if stage.samples_per_s < rate + 1e-6}


def test_ranks_of_one_job_wait_for_the_one_with_the_fewest_teachers() -> None:
    mesh = Mesh("v100", 8, (Team("p4", 39),), 32)
    waiting = predict(cluster(), job(students=8), mesh, FREE).samples_per_s
    alone = predict(cluster(), job(students=8, synchronous=False), mesh, FREE).samples_per_s
    assert waiting == pytest.approx(8 * 4 * 70)
    assert alone == pytest.approx(7 * 350 + 4 * 70)


@hypothesis.given(st.integers(1, 300), st.integers(1, 300))
def test_all_teachers_are_dealt_out(teachers: int, students: int) -> None:
    groups = deal((Team("p4", teachers),), students)
    assert sum(number for number, _ in groups) == students
    dealt = sum(number * team.count for number, teams in groups for team in teams)
    assert dealt == pytest.approx(teachers)


@pytest.mark.parametrize(
    ("students", "teachers", "availability", "rate"),
    [
        (1, 1, 0.6, 0.6 * 70),  # or none
        (1, 4, 0.9, 70 * 3.6),  # 3 or 4
        (1, 6, 0.9, 0.6 * 70 * 5 + 0.4 * 350),  # 5 or 6, and 5 are enough
        (8, 40, 0.97, 8 * 70 * 4),  # 38 or 39: the slowest rank has 4 of them
        (8, 40, 0.8, 8 * 70 * 4),  # 32
        (2, 9, 0.9, 2 * 70 * 4),  # 8 or 9
    ],
)
def test_devices_that_are_away_are_missed_whole(
    students: int, teachers: int, availability: float, rate: float
) -> None:
    there, work = cluster(), job(students=students)
    devices = (there.devices[0], replace(there.devices[1], availability=availability))
    mesh = Mesh("v100", students, (Team("p4", teachers),), 32)
    found = predict(replace(there, devices=devices), work, mesh, FREE)
    assert found.samples_per_s == pytest.approx(rate, rel=1e-3)


def test_travel_counts_where_it_is_longer_than_computing() -> None:
    size = 32 * 154_528
    slow = Link(size / 10, latency_s=0.0)  # ten seconds a batch, both ways
    found = predict(cluster(link=slow), job(), Mesh("v100", 1, (Team("p4", 5),), 32), FREE)
    assert found.stages[0].name in ("the teachers' links", "round trips")
    assert found.samples_per_s < 5 * 32 / 9
    far = Link(1e12, latency_s=1.0)
    two = predict(cluster(link=far), job(window_max=2), Mesh("v100", 1, (Team("p4", 5),), 32), FREE)
    assert two.stages[0].name == "round trips"
    assert two.samples_per_s == pytest.approx(5 * 32 * 2 / (32 / 70 + 2.0), rel=1e-3)
    eight = predict(cluster(link=far), job(), Mesh("v100", 1, (Team("p4", 5),), 32), FREE)
    assert eight.samples_per_s == pytest.approx(350, rel=1e-3)


def test_what_is_fixed_per_batch_counts_once_per_batch() -> None:
    given = job(
        student={"v100": Rate(samples_per_s=350, batch_overhead_s=0.1)},
        teacher={"p4": Rate(samples_per_s=1e6)},
    )
    costs = Costs(teacher_s=0.0, student_s=0.05)
    found = predict(cluster(), given, Mesh("v100", 1, (Team("p4", 1),), 32), costs)
    assert found.samples_per_s == pytest.approx(32 / (32 / 350 + 0.15), rel=1e-6)
    assert step_s(given, "v100", 32) == pytest.approx(32 / 350 + 0.1)
    both = replace(given, teacher={"v100": Rate(samples_per_s=700)})
    assert online_s(both, "v100", 32) == pytest.approx(32 / 350 + 0.1 + 32 / 700)


def test_a_small_buffer_costs_what_jitter_takes() -> None:
    uneven = job(
        student={"v100": Rate(samples_per_s=350, jitter=0.5)},
        teacher={"p4": Rate(samples_per_s=70, jitter=0.5)},
    )
    mesh = Mesh("v100", 1, (Team("p4", 5),), 32)
    roomy = predict(cluster(), uneven, mesh, FREE)
    small = predict(cluster(), replace(uneven, buffer_bytes=2 * 32 * 154_528.0), mesh, FREE)
    assert small.thresholds.upper == 2 < small.thresholds.ideal == roomy.thresholds.upper
    assert 0.6 * 350 < small.samples_per_s < 0.99 * roomy.samples_per_s
    assert small.stages[0].name == "pauses of a small buffer"
    assert roomy.lost > 0
    assert 0 <= small.thresholds.lower < small.thresholds.upper


rates = st.floats(0.01, 1e4)


@hypothesis.given(rates, rates, st.floats(0, 1e3), st.floats(0, 1e3))
def test_a_buffer_gives_neither_more_than_the_slower_nor_less_than_none(
    made: float, used: float, variance: float, room: float
) -> None:
    got = throughput(made, used, variance, room)
    assert 1 / (1 / made + 1 / used) <= got * (1 + 1e-9)
    assert got <= min(made, used) * (1 + 1e-9)
    assert throughput(made, used, variance, 2 * room + 1) >= got * (1 - 1e-9)


@hypothesis.given(rates, rates, st.floats(1e-3, 10))
def test_the_room_that_is_asked_for_suffices(made: float, used: float, variance: float) -> None:
    room = room_for(made, used, variance)
    assert throughput(made, used, variance, room) >= 0.985 * min(made, used)


@hypothesis.given(
    teachers=st.integers(1, 40),
    students=st.integers(1, 8),
    t_t=st.floats(1e-4, 1),
    t_s=st.floats(1e-4, 1),
    jitter=st.floats(0, 0.5),
    rows=st.integers(1, 128),
)
def test_more_teachers_never_slow_a_mesh_down(
    teachers: int, students: int, t_t: float, t_s: float, jitter: float, rows: int
) -> None:
    given = job(
        student={"v100": Rate(seconds_per_sample=t_s, jitter=jitter)},
        teacher={"p4": Rate(seconds_per_sample=t_t, jitter=jitter)},
        students=students,
    )
    few, more = (
        predict(cluster(), given, Mesh("v100", students, (Team("p4", count),), rows), FREE)
        for count in (teachers, 2 * teachers)
    )
    assert more.samples_per_s >= 0.98 * few.samples_per_s
    assert few.samples_per_s <= few.stages[0].samples_per_s * (1 + 1e-9)
    assert few.samples_per_s <= students / t_s * (1 + 1e-9)
    assert 0 <= few.thresholds.lower < few.thresholds.upper


def test_what_cannot_be_predicted_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one student and one teacher"):
        predict(cluster(), job(), Mesh("v100", 1, (), 32))
    with pytest.raises(ValueError, match="no rate of the teacher on 'v100'"):
        predict(cluster(), job(), Mesh("v100", 1, (Team("v100", 1),), 32))
    with pytest.raises(ValueError, match="no devices 'a100'"):
        predict(cluster(), job(), Mesh("a100", 1, (Team("p4", 1),), 32))

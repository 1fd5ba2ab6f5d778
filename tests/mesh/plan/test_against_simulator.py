"""What the planner predicts of a mesh is what the simulator sees it do."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from edl.mesh.plan.scenario import scenario_of
from edl.scheduler.cluster import Cluster, DeviceKind, Link
from edl.scheduler.cost_model import Mesh, Team, predict
from edl.scheduler.simulator import simulate
from edl.scheduler.workload import Job, Rate

JOB = Job(
    "x",
    samples=100_000,
    batch=(32,),
    student={"v100": Rate(samples_per_s=345)},
    teacher={"p4": Rate(samples_per_s=70), "old": Rate(samples_per_s=23)},
    sample_bytes=150_528,
    label_bytes=4000,
)


@dataclass(frozen=True)
class Case:
    name: str
    teams: tuple[Team, ...]
    students: int = 1
    jitter: float = 0.0
    link: Link | None = None
    batches: int = 200
    synchronous: bool = True
    source: float | None = None
    availability: float = 1.0

    def __str__(self) -> str:
        return self.name


P4 = "p4"
CASES = (
    Case("too few", (Team(P4, 3),)),
    Case("as many as n", (Team(P4, 5),)),
    Case("too many", (Team(P4, 8),)),
    Case("jitter", (Team(P4, 5),), jitter=0.3, batches=400),
    Case("narrow links", (Team(P4, 5),), link=Link(5e6)),
    Case("far away", (Team(P4, 6),), link=Link(1.25e9, 0.3), batches=450),
    Case("ranks with unequal shares", (Team(P4, 12),), students=5, batches=60),
    Case("students of unequal luck", (Team(P4, 12),), students=5, batches=60, synchronous=False),
    Case("a teacher for two", (Team(P4, 2),), students=4, batches=40),
    Case("a mixture", (Team(P4, 3), Team("old", 2))),
    Case("a slow loader", (Team(P4, 5),), source=200.0),
    Case("ranks that lack a spot teacher", (Team(P4, 20),), 4, batches=150, availability=0.95),
    Case("spot teachers in reserve", (Team(P4, 22),), 4, batches=40, availability=0.95),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_prediction_is_within_a_twentieth_of_the_simulation(case: Case) -> None:
    link = case.link or Link()
    cluster = Cluster(
        (
            DeviceKind("v100", 8, link=Link(1e10)),
            DeviceKind("p4", 64, link=link, availability=case.availability),
            DeviceKind("old", 64, link=link),
        )
    )
    job = replace(
        JOB,
        student={"v100": replace(JOB.student["v100"], jitter=case.jitter)},
        teacher={name: replace(rate, jitter=case.jitter) for name, rate in JOB.teacher.items()},
        students=case.students,
        synchronous=case.synchronous,
        source_samples_per_s=case.source,
    )
    mesh = Mesh("v100", case.students, case.teams, 32)
    predicted = predict(cluster, job, mesh)
    scenario = scenario_of(cluster, job, mesh, predicted)
    lasts_s = case.batches * 32 * case.students / predicted.samples_per_s
    scenario = replace(scenario, batches=None, duration_s=lasts_s, warm_up_s=lasts_s / 3)
    found = simulate(scenario, random.Random).samples_per_s
    assert predicted.samples_per_s == pytest.approx(found, rel=0.05)

"""What a manager tells Prometheus: its own view, by service, and what it refused."""

from __future__ import annotations

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from edl.coordinator.manager.views import DeskView, LeaderView, ManagerView, ServiceView
from edl.coordinator.metrics import CoordinatorMetrics
from edl.scheduler.autoscale import Desired

LEADER = LeaderView(
    term=1_700_000_000_000,
    counter=12,
    recovering=True,
    teachers={"serving": 3, "refused": 1},
    students=2,
    idle=1,
    look_s=0.004,
    solve_s=0.001,
    rows=20,
    recoveries=2,
    refusals=1,
    desired=Desired(4, "2 students want 4"),
)
DESK = DeskView(
    streams=2,
    students={"steady": 1, "starved": 1},
    wanted=4,
    assigned=3,
    samples_per_second=120.5,
    starved_s=1.5,
    blocked_s=2.5,
    source_wait_s=3.5,
    pushed=7,
    look_s=0.002,
)
VIEW = ManagerView(
    "head:7500",
    True,
    (ServiceView("resnet", "head:7500", LEADER, DESK), ServiceView("bert", "other:7500")),
)


def samples(metrics: CoordinatorMetrics) -> dict[str, float]:
    text = generate_latest(metrics.registry).decode()
    return {
        ",".join([sample.name.removeprefix("edl_coordinator_"), *sample.labels.values()]): value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
        for value in (sample.value,)
    }


def test_a_view_is_told_whole() -> None:
    metrics = CoordinatorMetrics()
    metrics.watch(lambda: VIEW)
    told = {name: value for name, value in samples(metrics).items() if "refused_total" not in name}
    assert told == {
        "registry_answering": 1,
        "leading,resnet": 1,
        "leading,bert": 0,
        "leader_known,resnet": 1,
        "leader_known,bert": 1,
        "term,resnet": 1_700_000_000_000,
        "assignment_counter,resnet": 12,
        "recovering,resnet": 1,
        "idle_teachers,resnet": 1,
        "desired_teachers,resnet": 4,
        "students,resnet": 2,
        "leader_look_seconds,resnet": 0.004,
        "solve_seconds,resnet": 0.001,
        "rows_written_total,resnet": 20,
        "recoveries_total,resnet": 2,
        "admission_refusals_total,resnet": 1,
        "teachers,resnet,serving": 3,
        "teachers,resnet,refused": 1,
        "streams,resnet": 2,
        "wanted_teachers,resnet": 4,
        "assigned_teachers,resnet": 3,
        "samples_per_second,resnet": 120.5,
        "starved_seconds,resnet": 1.5,
        "blocked_seconds,resnet": 2.5,
        "source_wait_seconds,resnet": 3.5,
        "desk_look_seconds,resnet": 0.002,
        "assignments_pushed_total,resnet": 7,
        "subscribed_students,resnet,steady": 1,
        "subscribed_students,resnet,starved": 1,
    }


def test_a_service_without_a_leader_says_so() -> None:
    metrics = CoordinatorMetrics()
    metrics.watch(lambda: ManagerView("head:7500", False, (ServiceView("bert"),)))
    told = samples(metrics)
    assert told["leader_known,bert"] == 0
    assert told["registry_answering"] == 0


def test_refusals_are_counted_by_reason_and_there_from_the_start() -> None:
    metrics = CoordinatorMetrics()
    assert samples(metrics)["refused_total,too_large"] == 0
    for reason in ("unauthenticated", "unauthenticated", "forbidden"):
        metrics.refused(reason)
    told = samples(metrics)
    assert told["refused_total,unauthenticated"] == 2
    assert told["refused_total,forbidden"] == 1


def test_a_reason_that_is_unknown_makes_no_new_label() -> None:
    metrics = CoordinatorMetrics()
    before = set(samples(metrics))
    metrics.refused("whatever a stranger sent")
    told = samples(metrics)
    assert set(told) == before
    assert told["refused_total,malformed"] == 1

"""Metrics of a manager; and that dashboard, alerts and the table of metrics name no others."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from edl.coordinator.manager.manager import ManagerView, ServiceView
from edl.coordinator.manager.service_state import LeaderView
from edl.coordinator.manager.subscription_hub import HubView
from edl.coordinator.metrics import CoordinatorMetrics
from edl.deploy.operator.loop import OperatorMetrics
from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.engine.metrics import Exporter
from edl.proto import coordinator_pb2 as pb
from edl.proto.security.certificates import Validity, export_expiry
from edl.proto.security.credentials import ServerSecurity
from edl.scheduler.autoscale import Desired
from edl.teacher import ModelSpec
from edl.teacher.identity import InstanceIdentity, TeacherView
from edl.teacher.predictor_jobs import PredictorReady
from edl.teacher.recorder import Recorder
from edl.tests.proto.security.authority import Authority
from edl.tests.waiting import DEADLINE_S

LEADER = LeaderView(
    term=1_700_000_000_000, counter=12, recovering=True, teachers={"serving": 3, "refused": 1},
    students=2, idle=1, reconcile_s=0.004, solve_s=0.001, rows=20, recoveries=2, refusals=1,
    desired=Desired(4, "2 students want 4"),
)  # fmt: skip
HUB = HubView(
    streams=2, students={"steady": 1, "starved": 1}, wanted=4, assigned=3,
    samples_per_second=120.5, starved_s=1.5, blocked_s=2.5, source_wait_s=3.5, pushed=7,
    refresh_s=0.002,
)  # fmt: skip
SERVICES = (ServiceView("resnet", "head:7500", LEADER, HUB), ServiceView("bert", "other:7500"))
VIEW = ManagerView(True, SERVICES)


def samples(text: str) -> Iterator[Sample]:
    for family in text_string_to_metric_families(text):
        yield from (one for one in family.samples if not one.name.endswith("_created"))


def values(metrics: CoordinatorMetrics) -> dict[str, float]:
    return {
        ",".join([one.name.removeprefix("edl_coordinator_"), *one.labels.values()]): one.value
        for one in samples(generate_latest(metrics.registry).decode())
    }


def test_a_view_is_exported_whole_and_refusals_are_counted_by_reason() -> None:
    metrics = CoordinatorMetrics()
    metrics.export_view(lambda: VIEW)
    reasons = ("refused_total", "registry_refusing")  # these are there from the start
    told = {name: value for name, value in values(metrics).items() if not name.startswith(reasons)}
    assert told == {
        "registry_answering": 1, "leading,resnet": 1, "leading,bert": 0, "leader_known,resnet": 1,
        "leader_known,bert": 1, "term,resnet": 1_700_000_000_000, "assignment_counter,resnet": 12,
        "recovering,resnet": 1, "idle_teachers,resnet": 1, "desired_teachers,resnet": 4,
        "students,resnet": 2, "leader_update_seconds,resnet": 0.004, "solve_seconds,resnet": 0.001,
        "assignments_written_total,resnet": 20, "recoveries_total,resnet": 2,
        "admission_refusals_total,resnet": 1, "teachers,resnet,serving": 3,
        "teachers,resnet,refused": 1, "streams,resnet": 2, "wanted_teachers,resnet": 4,
        "assigned_teachers,resnet": 3, "samples_per_second,resnet": 120.5,
        "starved_seconds,resnet": 1.5, "blocked_seconds,resnet": 2.5,
        "source_wait_seconds,resnet": 3.5, "table_read_seconds,resnet": 0.002,
        "assignments_pushed_total,resnet": 7, "subscribed_students,resnet,steady": 1,
        "subscribed_students,resnet,starved": 1,
    }  # fmt: skip
    metrics.export_view(lambda: ManagerView(False, (ServiceView("bert"),)))
    told = values(metrics)
    assert (told["leader_known,bert"], told["registry_answering"]) == (0, 0)
    metrics.export_view(lambda: ManagerView(False, refusal="read_only"))
    told = values(metrics)
    assert (told["registry_answering"], told["registry_refusing,read_only"]) == (1, 1)
    assert told["refused_total,too_large"] == 0
    for reason in ("unauthenticated", "unauthenticated", "forbidden", "what a stranger sent"):
        metrics.refused(reason)
    counted = values(metrics)
    assert set(counted) == set(told), "an unknown one makes no label"
    counts = [counted[f"refused_total,{r}"] for r in ("unauthenticated", "forbidden", "malformed")]
    assert counts == [2, 1, 1]


ROOT = Path(__file__).resolve().parents[2]
GRAFANA = ROOT / "deploy" / "grafana"
BOARD = json.loads((GRAFANA / "dashboard.json").read_text())
ALERTS = (GRAFANA / "alerts.yml").read_text()
METRICS_PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text()
ALERTS_PAGE = (ROOT / "docs" / "how-to" / "monitoring.md").read_text()
OF_PROMETHEUS = {"job", "instance", "namespace"}  # labels that Prometheus itself adds
_NAME = re.compile(r"\bedl_[a-z_]+\b")
_LABELS = (
    re.compile(r"[{,]\s*([a-z_]+)\s*=~?\s*\""),
    re.compile(r"\b(?:by|on)\s*\(([a-z_, ]+)\)"),
    re.compile(r"label_values\([^()]*,\s*([a-z_]+)\)"),
    re.compile(r"\{\{\s*(?:\$labels\.)?([a-z_]+)\s*\}\}"),
)


def of_reader() -> str:
    exporter = Exporter(ReaderConfig("resnet", "redis://head", metrics_listen="0"))
    try:
        member = MagicMock()
        member.config.service, member.config.student_id = "resnet", "job/0"
        member.governor.figures.samples_per_s.return_value = 1.0
        member.core.teachers.links.states.return_value = {"ready": 1}
        member.ledger.teachers = ["t"]
        member.ledger.in_flight_at.return_value = [1]
        exporter.answered(member, "t", MagicMock(seconds=0.1, job=MagicMock(samples=4)))
        reports = [pb.StudentReport()]
        exporter.show([member], reports, MagicMock(partial=0, unlabelled=0), Counter(), 0.0)
        url = f"http://{exporter.address}/metrics"
        with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
            return str(answer.read().decode())
    finally:
        exporter.close()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """All that the processes of a mesh tell, as Prometheus gets it."""
    coordinator = CoordinatorMetrics()
    coordinator.export_view(lambda: VIEW)
    teacher = Recorder()
    model = PredictorReady(ModelSpec("p", (), (), "c", ("n",)), 0.1, 8)
    now = TeacherView(InstanceIdentity("s", "t", 1), model, 4, 1, 0, 0.1, True, 0, 0, True)
    teacher.export_view(lambda: now)
    teacher.create_output_series(["logits"])
    authority = Authority(tmp_path_factory.mktemp("ca"))
    export_expiry(teacher.metric_registry, ServerSecurity(authority.issue("teacher")))
    operator = OperatorMetrics(lambda: False)
    operator.reconciled("jobs", succeeded=True, seconds=0.1)
    registries = (coordinator.registry, teacher.metric_registry, operator.registry)
    return [*(generate_latest(one).decode() for one in registries), of_reader()]


@pytest.fixture(scope="module")
def known(told: list[str]) -> dict[str, set[str]]:
    """The name of each sample -> its labels."""
    found: dict[str, set[str]] = {}
    for sample in (sample for text in told for sample in samples(text)):
        found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions() -> list[str]:
    targets = [target for panel in BOARD["panels"] for target in panel.get("targets", [])]
    variables = [v["query"] for v in BOARD["templating"]["list"] if v["type"] == "query"]
    rules = re.findall(r"(?:expr|summary|description): (\".*\")", ALERTS)
    return [
        *(f"{target['expr']} {target['legendFormat']}" for target in targets),
        *(query["query"] for query in variables),
        *(json.loads(rule) for rule in rules),
    ]


def test_every_name_and_label_exists(known: dict[str, set[str]]) -> None:
    used = 0
    for text in expressions():
        names = _NAME.findall(text)
        used += len(names)
        assert set(names) <= set(known), text
        if names:
            allowed = OF_PROMETHEUS.union(*(known[name] for name in names))
            labels = re.split(r",\s*", ",".join(chain(*(one.findall(text) for one in _LABELS))))
            assert {*labels} - {""} <= allowed, text
    assert used > 40


def test_the_dashboard_is_whole_and_every_alert_is_explained() -> None:
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    variables = {variable["name"] for variable in BOARD["templating"]["list"]}
    used = set(re.findall(r"\$(?:\{)?([a-z]+)\}?", json.dumps(panels)))
    assert {"service"} <= used <= variables
    alerts = re.findall(r"- alert: (\w+)", ALERTS)
    assert len(alerts) == len(set(alerts)) >= 10
    assert [alert for alert in alerts if f"`{alert}`" not in ALERTS_PAGE] == []


def expression(alert: str) -> str:
    (found,) = re.findall(rf"alert: {alert}\n +expr: (.*)", ALERTS)
    return str(json.loads(found))


@pytest.mark.parametrize(
    ("valid", "left", "soon"),
    [(7, 3, 0), (7, 1, 1), (3, 1, 0), (3, 0.5, 1), (90, 15, 0), (90, 13, 1), (3650, 30, 0)],
)
def test_a_certificate_ends_soon_by_its_validity(valid: float, left: float, soon: bool) -> None:
    day_s, now_s = 86_400.0, time.time()
    validity = Validity(now_s + (left - valid) * day_s, now_s + left * day_s)
    names = (f"edl_certificate_{name}_timestamp_seconds" for name in ("start", "expiry"))
    known = {"time": time.time, "clamp_max": min, **dict(zip(names, validity, strict=True))}
    # This PromQL is Python, too.
    assert validity.ends_soon == eval(expression("EdlCertificateExpires"), known) == soon


def test_alerts_tell_meshes_of_one_prometheus_apart() -> None:
    text = " ".join(re.findall(r"expr: (.*)", ALERTS))
    groups = re.findall(r"\b(?:sum|min|max|on) ?(?:by )?(\(.*?\))", text)
    assert len(groups) > 15
    assert [one for one in groups if not one.startswith(("(namespace", "(instance"))] == []


def test_a_reader_that_has_ended_is_not_down() -> None:
    (jobs,) = re.findall(r'job=~"(.*)"', expression("EdlProcessDown"))
    processes = ("coordinator", "teacher", "operator", "reader")
    assert [one for one in processes if re.fullmatch(jobs, f"edl-{one}")] == [*processes[:3]]


def test_recoveries_of_managers_that_restart_are_counted() -> None:
    """A counter would begin in each process with 1, which is no increase; terms only grow."""
    (name,) = _NAME.findall(expression("EdlRecoveryRepeating"))
    shown = []
    for term in (1, 2):
        metrics, leader = CoordinatorMetrics(), replace(LEADER, term=term, recoveries=1)
        view = ManagerView(True, (ServiceView("s", "head:7500", leader),))
        metrics.export_view(MagicMock(return_value=view))
        shown.append(values(metrics)[f"{name.removeprefix('edl_coordinator_')},s"])
    assert shown == [1, 2]


def test_the_table_of_metrics_is_whole(known: dict[str, set[str]]) -> None:
    rows = re.findall(r"^\| `(edl_[a-z_]+)` \| \w+ \| ([a-z_, -]+) \|", METRICS_PAGE, re.MULTILINE)
    listed = {name: set() if labels == "-" else set(labels.split(", ")) for name, labels in rows}
    parts = re.compile(r"_(bucket|count|sum)$")
    assert listed == {parts.sub("", name): labels - {"le"} for name, labels in known.items()}
    assert len(listed) == len(rows)


@pytest.mark.parametrize("process", ["coordinator", "teacher", "reader", "operator", "certificate"])
def test_the_table_of_metrics_has_their_help(told: list[str], process: str) -> None:
    help_of = re.compile(rf"^# HELP (edl_{process}_(?!.*_created )[a-z_]+) (.*)$", re.MULTILINE)
    meanings = {name: text for all_told in told for name, text in help_of.findall(all_told)}
    row = rf"^\| `(edl_{process}_[a-z_]+)` \| \w+ \| [a-z_, -]+ \| (.*) \|$"
    assert dict(re.findall(row, METRICS_PAGE, re.MULTILINE)) == meanings

"""`edl plan` on the examples: what it prints, varies, writes and refuses."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer

from edl.mesh.files import read, write
from edl.mesh.output import format_duration
from edl.mesh.plan import cli
from edl.mesh.plan.job_file import JobFile, Profile, load_job
from edl.mesh.plan.report import comparison_table, format_bytes
from edl.mesh.plan.scenario import scenario_of
from edl.mesh.plan.sweep import parse_sweep, plan_points
from edl.runtime.errors import UsageError
from edl.scheduler.cluster import Cluster, DeviceKind, DeviceLink, DeviceRate, Distillation
from edl.scheduler.pipeline_model import DeviceGroup, PlannedMesh, predict
from edl.scheduler.planner import plan
from edl.scheduler.simulator import Scenario, simulate
from edl.tests.cli_output import output_of, refusal_of

EXAMPLES = Path(__file__).parents[3] / "examples" / "plan"
FILES = ("--cluster", str(EXAMPLES / "cluster.yaml"), "--job", str(EXAMPLES / "job.yaml"))
#: `edl plan` alone: to put all commands together for each call takes longer than a plan.
PLAN = typer.Typer()
PLAN.command()(cli.plan)


run = partial(output_of, PLAN, *FILES)
refused = partial(refusal_of, PLAN)


def test_a_mesh_is_proposed_if_it_is_worth_it() -> None:
    text = run()
    assert "42 x p4: 5.25 for each student" in text
    assert "The mesh is worth it:" in text
    text = run("--teachers", "8")
    assert "The mesh is NOT worth it; take Online:" in text
    assert "with 33 teachers or more the mesh is faster; the plan uses 8" in text
    assert "The mesh is NOT worth it" in run("--aim", "cheapest")


def test_values_of_one_figure() -> None:
    made = json.loads(run("--what-if", "teachers=38..42", "--json"))
    found = made["what_if"]["points"]
    assert [one["value"] for one in found] == [38, 39, 40, 41, 42]
    slowest = [one["plan"]["prediction"]["stages"][0]["name"] for one in found]
    assert slowest == ["the teachers"] * 3 + ["the student's step"] * 2
    assert made["plan"]["verdict"]["take"] == "mesh"
    assert sum(group["count"] for group in made["plan"]["mesh"]["teams"]) == 42
    assert len(made["plan"]["ways"]) == 4
    for sweep, error in (
        ("teachers", "expects KEY=A..B"),
        ("teachers=4", "expects KEY=A..B"),
        ("teachers=9..4", "the range is empty"),
        ("teachers=0..4", "expects a whole number of at least 1, got '0'"),
        ("teachers=1..1000/1", "1000 values; at most 64"),
        ("teachers=1..4/0", "expects a whole number above 0, got '0'"),
        ("p4.prise=1..4", "unknown key; did you mean 'p4.price_per_hour'?"),
        ("p4.availability=0..2", "expects a number above 0 and of at most 1"),
        ("p4.latency_s=1 m..4 h", "got '1 m'"),
    ):
        assert error in refused(*FILES, "--what-if", sweep)


def test_teachers_are_fixed_for_every_value() -> None:
    text = run("--teachers", "16", "--what-if", "p4.price_per_hour=0.1..0.2/0.1")
    assert [row.split()[:2] for row in text.splitlines()[-2:]] == [["0.1", "16"], ["0.2", "16"]]


def test_bytes_and_durations_have_no_exponent() -> None:
    sizes = (999, 1023, 1010 * 2**20, 2**30, 999.7 * 2**30)
    texts = ["999 B", "0.999 KiB", "0.986 GiB", "1 GiB", "1,000 GiB"]
    assert [format_bytes(size) for size in sizes] == texts
    assert [format_duration(seconds) for seconds in (0.9994, 0.9996)] == ["999 ms", "1 s"]


def test_a_plot_that_cannot_be_drawn_is_refused_before_any_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edl.scheduler.planner.plan", lambda *_: pytest.fail("it was planned"))
    assert "must end in .png, .svg or .pdf" in refused(*FILES, "--plot", tmp_path / "p.bmp")
    for option in ("--plot", "--scenario"):
        assert "there is no folder" in refused(*FILES, option, tmp_path / "no" / "p.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "--plot needs matplotlib" in refused(*FILES, "--plot", tmp_path / "p.png")


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("teachers=40..42", [40, 41, 42]),
        ("batch=32..64/32", [32, 64]),
        ("students=1..8/7", [1, 8]),
        ("buffer_bytes=10 MiB..20 MiB/10485760", [10 * 2.0**20, 20 * 2.0**20]),
        ("p4.count=1..1000", None),  # a wide range goes in equal factors
        ("p4.price_per_hour=0.1..0.3/0.1", [0.1, 0.2, 0.3]),
        ("p4.latency_s=0..1 ms/0.001", [0, 0.001]),
        ("p4.availability=1e-12..0.5/0.5", [1e-12, 0.5]),  # at first hardly ever a teacher
        ("p4.bandwidth_bytes_per_s=1 Mbit/s..10 Gbit/s", None),
        ("p4.teacher.samples_per_s=20..100/80", [20, 100]),
        ("v100.student.batch_overhead_s=0..10 ms/0.01", [0, 0.01]),
    ],
)
def test_what_may_be_varied(key: str, values: list[float] | None) -> None:
    cluster, job = read(EXAMPLES / "cluster.yaml", Cluster), load_job(EXAMPLES / "job.yaml")
    sweep = parse_sweep(key, cluster, job)
    assert list(sweep.values) == pytest.approx(values or list(sweep.values))
    assert values or (len(sweep.values), sweep.values[0] < sweep.values[-1]) == (9, True)
    made = list(plan_points(sweep, cluster, job, "fastest"))
    assert [point.value for point in made] == list(sweep.values)
    rates = {point.plan.estimate("mesh").samples_per_s for point in made if point.plan is not None}
    figures = {point.plan.estimate("mesh").cost for point in made if point.plan is not None}
    assert len(rates | figures) > 1


def test_a_mistake_in_a_file_is_named(tmp_path: Path) -> None:
    text = (EXAMPLES / "cluster.yaml").read_text()
    wrong = tmp_path / "c.yaml"
    for old, new, error in (
        ("price_per_hour: 0.22", "prise: 0.22", "devices[1].prise: unknown key; did you mean"),
        ("tenure: spot", "tenure: spot\n    roles: [student]", "p4: spot devices leave at any"),
        ("[teacher]", "[]", "core: roles: at least one of student and teacher"),
        ("name: p4 ", "name: v100 ", "two kinds of devices are called 'v100'"),
    ):
        assert old in text
        wrong.write_text(text.replace(old, new))
        message = refused("--cluster", str(wrong), *FILES[2:])
        assert message.startswith(f"{wrong}:")
        assert error in message
    job = (EXAMPLES / "job.yaml").read_text()
    for old, new, error in (
        ("samples: 1281167", "", "'samples' is missing, here and in profiles"),
        ("samples_per_s: 340, ", "", "student.v100: expects one of samples_per_s and"),
        ("students: 8", "students: 9", "there are 8 v100, the job needs 9"),
        ("batch: 32", "batch: [32, x]", "batch"),
    ):
        assert old in job
        wrong.write_text(job.replace(old, new))
        assert error in refused(*FILES[:2], "--job", str(wrong))
    wrong.write_text(job.replace("  core:", "  cores:"))
    output = output_of(PLAN, *FILES[:2], "--job", wrong)
    assert "note: the cluster has no devices cores" in output
    assert "note: the job has no rate on core" in output


def test_a_profile_says_what_the_job_does_not(tmp_path: Path) -> None:
    student = {"here": DeviceRate(seconds_per_sample=0.01)}
    teacher = {"here": DeviceRate(50.0, micro_batch=8)}
    profile = Profile(student, teacher, 16, 1000, 64.0, 40.0, 500.0)
    write(tmp_path / "profile.yaml", profile)
    own = JobFile("x", (Path("profile.yaml"),), samples=2000, teacher={"p4": DeviceRate(10.0)})
    write(tmp_path / "job.yaml", own)
    job = load_job(tmp_path / "job.yaml")
    assert (job.batch, job.samples, job.sample_bytes, job.label_bytes) == ((16,), 2000, 64, 40)
    assert job.student == profile.student
    assert job.teacher == {**profile.teacher, "p4": DeviceRate(10.0)}
    assert job.source_samples_per_s == 500
    write(tmp_path / "profile.yaml", replace(profile, student={}))
    with pytest.raises(UsageError, match="'student' is missing"):
        load_job(tmp_path / "job.yaml")
    write(tmp_path / "job.yaml", JobFile("x", (Path("none.yaml"),)))
    with pytest.raises(UsageError, match=r"job\.yaml: profiles: .*none\.yaml: no such file"):
        load_job(tmp_path / "job.yaml")


def test_a_plan_is_a_scenario_that_can_be_simulated(tmp_path: Path) -> None:
    run("--teachers", "16", "--scenario", str(tmp_path / "mesh.yaml"))
    scenario = read(tmp_path / "mesh.yaml", Scenario)
    assert (scenario.students[0].count, scenario.teachers[0].count) == (8, 16)
    assert scenario.students[0].together
    assert scenario.duration_s is not None  # until then, students of any speed are all there
    short = replace(scenario, batches=30, warm_up_s=0.0)
    assert {student.batches for student in simulate(short, random.Random).students} == {30}


P4 = "p4"
JOB = Distillation(
    "x",
    samples=100_000,
    batch=(32,),
    student={"v100": DeviceRate(samples_per_s=345)},
    teacher={P4: DeviceRate(samples_per_s=70), "old": DeviceRate(samples_per_s=23)},
    sample_bytes=150_528,
    label_bytes=4000,
)
LUCK = {"students": 5, "batches": 60}
SPOT = {"students": 4, "availability": 0.95}
#: Teams of teachers, and what is not as usual.
CASES: dict[str, tuple[tuple[DeviceGroup, ...], dict[str, Any]]] = {
    "too few": ((DeviceGroup(P4, 3),), {}),
    "as many as n": ((DeviceGroup(P4, 5),), {}),
    "too many": ((DeviceGroup(P4, 8),), {}),
    "jitter": ((DeviceGroup(P4, 5),), {"jitter": 0.3, "batches": 400}),
    "narrow links": ((DeviceGroup(P4, 5),), {"link": DeviceLink(5e6)}),
    "far away": ((DeviceGroup(P4, 6),), {"link": DeviceLink(1.25e9, 0.3), "batches": 450}),
    "ranks with unequal shares": ((DeviceGroup(P4, 12),), LUCK),
    "students of unequal luck": ((DeviceGroup(P4, 12),), {**LUCK, "synchronous": False}),
    "a teacher for two": ((DeviceGroup(P4, 2),), {"students": 4, "batches": 40}),
    "a mixture": ((DeviceGroup(P4, 3), DeviceGroup("old", 2)), {}),
    "a slow loader": ((DeviceGroup(P4, 5),), {"source": 200.0}),
    "ranks that lack a spot teacher": ((DeviceGroup(P4, 20),), {**SPOT, "batches": 150}),
    "spot teachers in reserve": ((DeviceGroup(P4, 22),), {**SPOT, "batches": 40}),
}


@pytest.mark.parametrize(("groups", "case"), CASES.values(), ids=CASES)
def test_a_prediction_is_within_a_twentieth_of_the_simulation(
    groups: tuple[DeviceGroup, ...], case: dict[str, Any]
) -> None:
    link, students = case.get("link", DeviceLink()), case.get("students", 1)
    p4 = DeviceKind(P4, 64, link=link, availability=case.get("availability", 1.0))
    fast = DeviceKind("v100", 8, link=DeviceLink(1e10, link.latency_s))
    cluster = Cluster((fast, p4, DeviceKind("old", 64, link=link)))
    jitter = case.get("jitter", 0.0)
    job = replace(
        JOB,
        student={"v100": replace(JOB.student["v100"], jitter=jitter)},
        teacher={name: replace(rate, jitter=jitter) for name, rate in JOB.teacher.items()},
        students=students,
        synchronous=case.get("synchronous", True),
        source_samples_per_s=case.get("source"),
    )
    mesh = PlannedMesh("v100", students, groups, 32)
    predicted = predict(cluster, job, mesh)
    scenario = scenario_of(cluster, job, mesh, predicted)
    lasts_s = case.get("batches", 200) * 32 * students / predicted.samples_per_s
    scenario = replace(scenario, duration_s=lasts_s, warm_up_s=lasts_s / 3)
    found = simulate(scenario, random.Random).samples_per_s
    assert predicted.samples_per_s == pytest.approx(found, rel=0.05)


def test_each_method_has_the_devices_that_are_best_for_it() -> None:
    cluster = Cluster((DeviceKind("v100", 1, 2.48), DeviceKind(P4, 1, 0.22)))
    teacher = {"v100": DeviceRate(3000.0), P4: DeviceRate(72.0)}
    job = replace(JOB, student={"v100": DeviceRate(340.0), P4: DeviceRate(300.0)}, teacher=teacher)
    made = plan(cluster, job)
    assert (made.student, made.verdict.take) == (P4, "Online")
    names = ["N-training (v100, batch 32)", "Online (v100, batch 32)", "mesh"]
    assert list(comparison_table(made).columns[0].cells) == names
    slow = replace(job, student={**job.student, P4: DeviceRate(30.0)})
    cheap = Cluster((DeviceKind("v100", 1, 2.48), DeviceKind(P4, 1, 0.02)))
    reason = plan(cheap, slow, aim="cheapest").verdict.reasons[-1]
    assert reason == "the mesh is faster than training without a teacher on p4"

"""Short runs of benchmarks: they measure real things and fill the tables that they name."""

from __future__ import annotations

import gzip
import json
import math
import shutil
import statistics
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.benchmarks import (
    accuracy,
    assignment,
    cli,
    codec,
    demo,
    hostile,
    imports,
    ledger,
    pool,
    reader,
    simulator,
    teacher,
    transport,
)
from edl.benchmarks.children import Child
from edl.benchmarks.distillation import reviews, vision
from edl.benchmarks.distillation.training_ways import WAYS, DistillationOutcome, Way
from edl.benchmarks.jobs import web
from edl.benchmarks.paced import changes, configurations, streams
from edl.benchmarks.paced.teachers import paced, start_teachers
from edl.benchmarks.reader import FLOOR, PINNED, REMOTE, SAME_HOST, SHARED
from edl.benchmarks.report import MIN_ROUNDS, BenchmarkReport
from edl.benchmarks.teachers import on_device
from edl.benchmarks.transports import processes
from edl.mesh.demo.modes import ModeResult, StreamSummary
from edl.runtime.errors import ProcessFailed, UsageError
from edl.tests.examples.data import write_mnist, write_reviews

pytestmark = pytest.mark.system


def check_form(report: BenchmarkReport, *columns: str, goals: int) -> None:
    """The report has a machine, so many goals, and finite figures above 0 in these columns."""
    written = json.loads(json.dumps(report.to_json()))
    assert written["machine"]["cores"] >= 1
    assert len(written["goals"]) == goals
    assert all({"name", "value", "op", "limit", "holds"} <= set(goal) for goal in written["goals"])
    assert written["rows"]
    for row in written["rows"]:
        assert all(0 < float(row[column]) < math.inf for column in columns), row


# --- in this process


def test_students_of_the_assignment_benchmark_want_more_than_there_is() -> None:
    service = assignment.Service(60, 6)
    service.want_s()
    students = service.state.students.values()
    assert {name for entry in students for name in entry.teachers} == service.state.teachers.keys()
    check_form(assignment.run(quick=True, teachers=100, students=10), "cpu_s", goals=4)


@pytest.mark.parametrize(
    ("name", "smaller", "columns", "goals"),
    [
        ("codec", {"SHAPE": (2, 3, 64, 64)}, ("codec_ms", "protobuf_ms", "low", "high"), 0),
        ("ledger", {"CASES": ledger.CASES[:1]}, ("events_per_s", "low", "high"), 2),
        ("labels", {"TEMPERATURES": (1.0,)}, ("encode_us",), 2),
        ("store", {"FORMS": ("topk:20",)}, ("read_us",), 1),
    ],
)
def test_short_benchmarks(
    name: str, smaller: Any, columns: Any, goals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for what, value in smaller.items():
        monkeypatch.setattr(f"edl.benchmarks.{name}.{what}", value)
    report = cli.run(name, quick=True)
    check_form(report, *columns, goals=goals)
    rows = {row.get("form") or row.get("by"): row for row in reversed(report.rows)}
    if name == "labels":
        assert rows["topk:20"]["bytes_per_sample"] == 20 * (2 + 2) + 4
        assert rows["bfloat16"]["saved_percent"] == 50
        assert report.holds  # counts of bytes, not of seconds
    if name == "store":
        assert {"Store", "SQLite alone", "LMDB"} <= rows.keys()
        assert 84 < float(rows["Store"]["disk_bytes"]) < 2.5 * 84


def test_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "BATCH_S", 0.002)
    report = pool.run(quick=True)
    check_form(report, "value", goals=2)
    assert [row["case"] for row in report.rows][::3] == [
        "teachers of 0.002 s",
        "instant teachers",
        "latency of one row",
    ]


@pytest.mark.parametrize("dtype", codec.DTYPES)
def test_both_codecs_carry_the_same_batch(dtype: str) -> None:
    array = np.arange(24).astype(dtype).reshape(2, 3, 4)
    for way in (codec.with_codec, codec.with_protobuf):
        np.testing.assert_array_equal(way(array), array, strict=True)


def test_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    few = replace(simulator.LARGE.students[0], count=5)
    many = replace(simulator.LARGE.teachers[0], count=40)
    large = replace(simulator.LARGE, duration_s=70.0, students=(few,), teachers=(many,))
    monkeypatch.setattr(simulator, "SMALL", replace(simulator.SMALL, batches=20))
    monkeypatch.setattr(simulator, "LARGE", large)
    report = simulator.run(quick=False)
    check_form(report, goals=3)
    assert report.rows[0]["batches"] == 160
    assert report.goals[-1].value == 0  # two runs differ in nothing


# --- accuracy


def test_pairs_are_compared_by_students_t() -> None:
    # The differences are 2 3 1 4; by a table, t(3) is 3.182.
    found = accuracy.Paired.of([3, 5, 4, 6], [1, 2, 3, 2])
    half = 3.182 * np.std([2, 3, 1, 4], ddof=1) / 2
    assert found.mean == 2.5
    assert (found.low, found.high) == pytest.approx((2.5 - half, 2.5 + half), abs=1e-3)
    assert 0.02 < found.p < 0.05  # t is 3.87
    assert accuracy.Paired.of([1, 2], [1, 2]) == accuracy.Paired(0, 0, 0, 1)
    assert accuracy.Paired.of([2, 3], [1, 2]).p == 0
    with pytest.raises(ValueError, match="needs two or more pairs"):
        accuracy.Paired.of([1], [2])


def outcome(way: Way, *points: float, killed: int = 0, joined: int = 0) -> DistillationOutcome:
    facts = StreamSummary(1, 1, 0, 0, "ab" * 32)
    values = tuple(point / 100 for point in points)
    result = ModeResult("edl_dist", values, 1.0, 1.0, facts)
    return DistillationOutcome(
        way, result, killed, joined, share_from_store=1.0 if way == "offline" else 0.0
    )


@pytest.mark.parametrize(
    ("changed", "goal"),
    [
        ({}, None),
        ({"n_training": outcome("n_training", 89, 92, 92.5, 91)}, "above N-training"),
        ({"n_training": outcome("n_training", 98, 99, 99, 98)}, "above N-training"),
        ({"churn": outcome("churn", 85, 86, 87, 86, killed=1, joined=1)}, "steady, p"),
        ({"churn": outcome("churn", 60, 91, 92, 91, killed=1, joined=1)}, "steady, points"),
        ({"churn": outcome("churn", 90, 91, 92.5, 91, killed=1)}, "killed"),
        ({"offline": replace(outcome("offline", 90, 91, 92, 91), share_from_store=0.9)}, "store"),
    ],
)
def test_each_goal_of_accuracy_can_fail(
    changed: dict[Way, DistillationOutcome], goal: str | None
) -> None:
    outcomes: dict[Way, DistillationOutcome] = {way: outcome(way, 90, 91, 92.5, 91) for way in WAYS}
    outcomes["n_training"] = outcome("n_training", 80, 82, 81, 82)
    outcomes["churn"] = outcome("churn", 90, 91, 92.5, 91, killed=2, joined=2)
    goals = accuracy.judge(vision.digits(4, quick=True), {**outcomes, **changed})
    failed = [one.name for one in goals if not one.holds]
    assert len(goals) == 5
    assert (not failed) if goal is None else any(goal in name for name in failed)


def test_mnist_is_found_and_read_wherever_it_lies(tmp_path: Path) -> None:
    assert vision.mnist(tmp_path, 2, quick=True) is None
    folder = tmp_path / "package" / "data"
    folder.mkdir(parents=True)
    write_mnist(folder, rows=120)
    task = vision.mnist(tmp_path, 2, quick=True)
    assert task is not None
    assert task.data.train_image.shape == (120, 1, 28, 28)
    assert task.data.train_label[:4].tolist() == [0, 1, 2, 3]
    image, label, _ = next(iter(task.batches))
    assert (image.shape, label.shape) == ((64, 1, 28, 28), (64,))
    for content, message in (
        (b"\0\0\x08\x01\0\0\0\x09only", "4 bytes of data instead of 9"),
        (b"GIF", "not an IDX"),
    ):
        (folder / vision.IDX_FILES[0]).write_bytes(content)
        with pytest.raises(UsageError, match=message):
            vision.mnist(tmp_path, 2, quick=True)
    packed = tmp_path / "images.gz"
    for content in (gzip.compress(b"\0\0\x08\x01\0\0\0\x04abcd")[:-9], b"GIF"):
        packed.write_bytes(content)
        with pytest.raises(UsageError, match="cannot be unpacked"):
            vision.read_idx(packed)


def test_reviews_are_split_without_a_text_in_both_parts(tmp_path: Path) -> None:
    write_reviews(tmp_path)
    task = reviews.reviews(tmp_path, 2, quick=True)
    assert task is not None
    train, test = task.data.train_image, task.data.test_image
    assert (len(train), len(test)) == (300, 100)
    assert not {row.tobytes() for row in train} & {row.tobytes() for row in test}
    varied = task.augmentation(np.random.default_rng(0), train)
    changed = (varied != train).sum() / (train != reviews.END).sum()
    assert changed == pytest.approx(reviews.LEFT_OUT, abs=0.02)
    assert ((varied == reviews.END) == (train == reviews.END)).all()
    for content, message in ((b"\xe4", "not text in UTF-8"), (b"\n", "has no reviews")):
        (tmp_path / "neg.txt").write_bytes(content)
        with pytest.raises(UsageError, match=message):
            reviews.reviews(tmp_path, 2, quick=True)


def test_data_that_is_not_there_is_named(tmp_path: Path) -> None:
    for options, message in (
        ({"data": tmp_path / "no"}, "there is no folder"),
        ({"data": tmp_path}, "neither MNIST"),
        ({"task": "mnist"}, "there are: digits"),
        ({"task": "mnist", "picture": tmp_path}, "it is a folder"),  # before all else
    ):
        with pytest.raises(UsageError, match=message):
            accuracy.run(quick=True, **options)


@pytest.mark.nightly  # four trainings: most of a minute
def test_all_ways_give_the_same_labels_but_one_that_has_none(tmp_path: Path) -> None:
    picture = tmp_path / "accuracy.png"
    report = accuracy.run(quick=True, picture=picture, task="digits")
    assert picture.read_bytes().startswith(b"\x89PNG")
    check_form(report, "accuracy", "seconds", goals=5)
    n_training, online, steady, churn, offline = report.rows
    assert online["stream"] == steady["stream"] == churn["stream"] == offline["stream"]
    assert online["stream"] != n_training["stream"]
    assert online["by seed"] == churn["by seed"] != n_training["by seed"]
    assert int(churn["killed"]) >= 1
    assert int(churn["joined"]) >= 1
    assert (steady["from store"], offline["from store"]) == (0, 1)


# --- of several processes


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_hostile_makes_each_attack_and_answers_the_good_client_meanwhile() -> None:
    report = hostile.run(quick=True, seconds=3.0)
    assert [row["phase"] for row in report.rows] == ["alone", "attacked"]
    assert [row["failures"] for row in report.rows] == [0, 0]
    exact = {goal.name: goal.value for goal in report.goals if goal.op == "=="}
    assert exact == {"requests without an answer": 0, "kinds of attack without an act": 0}


def test_an_import_is_measured_in_a_fresh_interpreter(tmp_path: Path) -> None:
    light, heavy = (imports.measure((name,), tmp_path) for name in ("json:dumps", "grpc"))
    assert light.heavy == frozenset()
    assert heavy.heavy == {"grpc"}
    assert 0 < light.cpu_s < light.process_s
    with pytest.raises(ProcessFailed, match="No module named 'no_such_module'"):
        imports.measure(("no_such_module",), tmp_path)


def test_transport_measures_every_transport() -> None:
    found = transport.measure((32, 64), "float32", requests=4)
    tls = processes.has_openssl()
    assert set(found) == {name for name, row in transport.TRANSPORTS.items() if tls or not row.tls}
    for taken in found.values():
        assert len(taken.wall_s) == len(taken.client_cpu_s) == len(taken.server_cpu_s) > 15
        assert min(taken.wall_s) > 0
        assert min(sum(taken.client_cpu_s), sum(taken.server_cpu_s)) > 0


@pytest.mark.parametrize(
    ("location", "teachers"),
    [pytest.param(REMOTE, (2,), marks=pytest.mark.nightly), (SAME_HOST, (1, 2))],
)
def test_reader_measures_readers_and_plain_sockets(
    location: str, teachers: tuple[int, ...]
) -> None:
    found = reader.measure("uint8", location, teachers, batches=2)
    assert (tuple(found.sockets), tuple(found.readers)) == ((SHARED, PINNED, FLOOR), teachers)
    for each in (*found.sockets.values(), *found.readers.values()):
        assert len(each.wall_s) == MIN_ROUNDS + 1
        assert min(each.wall_s) > 0
        assert min(sum(each.trainer_s), sum(each.teachers_s)) > 0
    assert all(sum(each.engine_s) > 0 for each in found.readers.values())


def test_mesh_and_teacher_measure_paced_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_LISTEN", "of the user's mesh")
    with ExitStack() as stack:
        addresses = [address for address, _ in start_teachers(stack, [paced(0.01)] * 2)]
        found = streams.share(addresses, teacher_s=0.01, step_s=0.005, window_s=0.02)
    assert found.possible_per_s == pytest.approx(1600)
    for part in (found.part, teacher.paced(batch_s=0.01, window_s=0.02)):
        assert 0 < part.low <= part.value <= part.high < math.inf
    assert changes.suspended(0.02, 2, 0.02, volume_s=0.2, stop_s=0.5, times=1) > 0


def test_a_teacher_on_a_device_is_compared_with_a_bare_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiny = [
        on_device.Network(framework, "edl.tests.gpu.networks:taking_bytes", 2, framework)
        for framework in ("torch", "onnx")
    ]
    monkeypatch.setattr(on_device, "NETWORKS", {"cpu": tiny})
    monkeypatch.setattr(on_device, "_QUICK_TURN_S", 0.001)
    report = cli.run("teacher", quick=True, device="cpu")
    check_form(report, "bare_samples_per_s", "delivered", "low", "high", goals=2)
    assert [row["network"] for row in report.rows] == ["torch", "onnx"]
    with pytest.raises(UsageError, match="no --device"):
        cli.run("paper.edl_controller", quick=True, measure=True, device="cpu")
    with pytest.raises(UsageError, match="omit --device"):
        cli.run("paper.table1", quick=True, simulate=True, device="cpu")


def test_demo_compares_the_turns_of_one_round() -> None:
    drifting = [speed / 100 for speed in range(100, 100 + MIN_ROUNDS)]
    ways = [[times * speed for speed in drifting] for times in (1, 1 / 0.95, 2, 1 / 0.9)]
    report = demo.judge(ways, [0.0] * MIN_ROUNDS)
    assert [row["x N-training"] for row in report.rows] == pytest.approx([1, 0.95, 0.5, 0.9])
    assert [row["x Online"] for row in report.rows] == pytest.approx([2, 1.9, 1, 1.8])
    to_online, to_n_training, to_at_hand, buffered = report.goals
    assert (to_online.low, to_n_training.high) == pytest.approx((1.8, 0.9))
    assert to_at_hand.value == pytest.approx(0.9 / 0.95)
    assert (to_online.holds, to_n_training.holds, buffered.holds) == (True, False, True)


def test_plan_runs_two_students_as_planner_and_simulator_agree() -> None:
    for one in configurations.CONFIGURATIONS:
        assert configurations.planned(one) == pytest.approx(configurations.simulated(one), rel=0.05)
    asked = configurations.Configuration("two students", 0.01, (0.015,), students=2)
    rates = configurations.measured(asked, window_s=0.02)
    assert len(rates) == MIN_ROUNDS
    assert statistics.median(rates) > 0


def test_elastic_times_each_request_of_its_service() -> None:
    with ExitStack() as stack:
        port = Child(stack, "web", web.serve).receive()["port"]
        load = Child(stack, "load", web.load, port, 10_000.0, 1000)
        assert len(load.receive()["times_ms"]) == 1000


def test_a_child_that_fails_is_reported_with_its_error() -> None:
    refused = r"the load ended with exit code 1: ConnectionRefusedError"
    with ExitStack() as stack, pytest.raises(ProcessFailed, match=refused):
        Child(stack, "the load", web.load, 1, 1.0, count=1).receive()


LONG = ("checkpoint", "coordinator", "demo", "elastic", "mesh", "plan", "students", "teacher")


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [*LONG, "paper.table1"])
def test_long_benchmarks(name: str) -> None:
    options = {"measure": True} if name.startswith("paper") else {}
    report = cli.run(name, quick=True, **options)
    check_form(report, goals=len(report.goals))
    assert report.goals

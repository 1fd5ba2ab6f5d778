"""What benchmarks compute from their measurements: statistics, goals, virtual devices."""

from __future__ import annotations

import contextlib
import math
import os
import random
import socket
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from typing import Any
from unittest.mock import MagicMock, Mock, PropertyMock

import pytest

from edl.benchmarks import (
    assignment,
    coordinator,
    demo,
    elastic,
    hostile,
    labels,
    ledger,
    reader,
    students,
    teacher,
)
from edl.benchmarks.children import divided_cores, two_cores
from edl.benchmarks.distillation.training_ways import RepeatedChurn
from edl.benchmarks.paced import streams
from edl.benchmarks.paced.streams import PacedStudent, share, windows_s
from edl.benchmarks.paper.measured import table1
from edl.benchmarks.paper.measured.student import (
    EDL_DIST,
    LABELLING_ALONE,
    N_TRAINING,
    ONLINE,
    STEP_ALONE,
)
from edl.benchmarks.plan import error_of
from edl.benchmarks.reader import (
    FLOOR,
    PINNED,
    REMOTE,
    SAME_HOST,
    SHARED,
    ReaderMeasurement,
    ReaderTimes,
)
from edl.benchmarks.report import MIN_ROUNDS, BenchmarkReport, Estimate, Goal, quantile
from edl.benchmarks.teachers.latency_probe import LatencyProbe
from edl.distill_reader import ReaderStats
from edl.mesh.local import TeacherSpec
from edl.proto.forms import LabelForm
from edl.runtime.errors import ProcessFailed
from edl.scheduler.leadership import BEATS_PER_TTL
from edl.tests.waiting import DEADLINE_S

# --- accuracy


def test_teachers_are_killed_and_replaced_round_after_round() -> None:
    mesh, alive, now = Mock(), ["a", "b"], count()
    mesh.kill.side_effect = alive.remove
    mesh.start_teacher.side_effect = lambda name, spec: alive.append(name)
    spec = TeacherSpec("s", "m")
    churning = RepeatedChurn(mesh, spec, steps=30, batches=90, say=Mock(), clock=lambda: next(now))
    for batch in range(90):
        in_flight = tuple((name, 1) for name in alive)
        stats = ReaderStats(teachers=tuple(alive), in_flight=in_flight, resends=1)
        for _ in range(4):
            churning.update(batch, stats)
    assert churning.killed == churning.joined == 3
    assert not churning.awaits_newcomer
    assert len(alive) == 2
    assert [name for name, _, _ in mesh.method_calls] == ["suspend", "kill", "start_teacher"] * 3


# --- demo


def test_the_warm_up_round_does_not_count_for_what_comes_from_the_buffer() -> None:
    warm_up, others = 1.0, [0.0] * 8 + [1.0] * 7
    report = demo.judge([[1.0] * MIN_ROUNDS] * 4, [warm_up, *others])
    assert report.goals[-1].value == 0.0


# --- labels, ledger


def errors(form: str, loss_t: float = 1.0, sent_t: float | None = None) -> tuple[float, float]:
    parsed: Any = LabelForm.parse(form, sent_t)
    return labels.errors(labels.LabelCase(parsed, loss_t), *labels.draw(64))


def test_errors_of_labels_grow_as_fewer_bytes_travel_and_are_zero_for_float32() -> None:
    assert max(errors("float32")) == pytest.approx(0)
    few, more, most = errors("float16"), errors("topk:100"), errors("topk:20")
    # A tail that is exact only at temperature 1 costs at another one.
    of_logits, of_probabilities = errors("topk:20", 4.0), errors("topk:20", 4.0, 4.0)
    for term in range(2):
        assert 0 < few[term] < more[term] < most[term]
        assert of_probabilities[term] < of_logits[term]


@pytest.mark.parametrize("loss_every", [0, 7])
def test_the_ledger_stream_carries_every_batch_to_the_student(loss_every: int) -> None:
    stream = ledger.Stream(200, ledger.StreamCase("whole batches", loss_every))
    losses = 200 // loss_every if loss_every else 0
    assert stream.drive() == 8 + 4 * 200 + 2 * losses
    assert (stream.ledger.resends > 0) == (losses > 0)
    assert stream.ledger.labelled == stream.ledger.unlabelled == 0


# --- latencies of what never happens


def test_without_answers_under_attack_or_alone_a_goal_fails() -> None:
    answered = hostile.Phase([0.01] * 100, failures=0, memory=[1] * 6)
    silent = hostile.Phase([], failures=9, memory=[1])
    report = hostile.judge(answered, silent, {"random bytes": 1})
    assert [goal.holds for goal in report.goals] == [False, False, True, True]
    assert (report.rows[1]["median_ms"], report.rows[1]["p99_ms"]) == (math.inf, math.inf)
    unanswered = hostile.judge(silent, answered, {"random bytes": 1}).goals[1]
    assert (unanswered.value, unanswered.holds) == (9, False)


def test_a_crowd_in_which_no_dead_teacher_was_assigned_fails_its_goal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = {"redis": 0.0, "manager": 0.0}
    figures = coordinator.LoadStats(10, 1, cores, cores, [0.1], [], beats_per_s=1.0, late_s=0.0)
    monkeypatch.setattr(coordinator, "measure", lambda *_: figures)
    monkeypatch.setattr(assignment, "run", lambda **_: BenchmarkReport([]))
    report = coordinator.run(quick=True)
    assert [goal.holds for goal in report.goals] == [True, True, True, False]
    assert report.rows[0]["death_p99_s"] == math.inf


def test_a_tiny_crowd_is_measured_once_and_fixed_costs_do_not_fail_its_goals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = {"redis": 0.01, "manager": 0.05}
    sizes: list[tuple[int, int]] = []

    def measure(teachers: int, students: int, _: float) -> coordinator.LoadStats:
        sizes.append((teachers, students))
        return coordinator.LoadStats(teachers, students, cores, cores, [0.1], [0.1], 1.0, 0.0)

    monkeypatch.setattr(coordinator, "measure", measure)
    monkeypatch.setattr(assignment, "run", lambda **_: BenchmarkReport([]))
    assert coordinator.run(quick=False, teachers=10, students=1).holds
    assert sizes == [(10, 1)]


# --- hostile


def test_only_attacks_by_http_2_offer_it() -> None:
    hellos: list[bytes] = []

    def note_hellos(server: socket.socket) -> None:
        for _ in range(2):
            connection, _ = server.accept()
            with connection:
                hellos.append(connection.recv(1 << 16))

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        noted = pool.submit(note_hellos, server)
        address = server.getsockname()
        kinds = hostile.Attacks({"grpc": address, "http": address}, "token").kinds()
        for kind in ("frames of HTTP/2", "half a request"):
            with pytest.raises(OSError):
                kinds[kind]()
        noted.result(timeout=DEADLINE_S)
    assert [b"\x02h2" in hello for hello in hellos] == [True, False]


# --- elastic


@pytest.mark.parametrize(
    ("makespan_s", "slower", "holds"),
    [
        (80.0, 1.0, [True] * 4),
        (90.0, 1.0, [False, True, True, True]),
        (80.0, 1.5, [True, True, True, False]),
    ],
)
def test_a_long_makespan_or_a_slower_service_fails_its_goal(
    rng: random.Random, makespan_s: float, slower: float, holds: list[bool]
) -> None:
    assert quantile([float(n) for n in rng.sample(range(1, 101), 100)], 0.99) == 99.0
    alone = [rng.uniform(5.0, 5.5) for _ in range(MIN_ROUNDS * 20)]
    served = elastic.ServiceTimes(alone, alone, [slower * took for took in alone], 4.0)
    report = elastic.report(
        elastic.JobTimes(100.0, 30.0), elastic.JobTimes(makespan_s, 1.0), served
    )
    assert [goal.holds for goal in report.goals] == holds


# --- mesh, plan, teacher: devices of stated rates

STEP_S = 0.01


class VirtualTime:
    """Stands for the module `time`: it passes in sleeps, and a little whenever it is read."""

    TICK_S = 1e-4

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        self.now_s += self.TICK_S
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    time = VirtualTime()
    monkeypatch.setattr(streams, "time", time)
    return time


def test_a_paced_student_does_not_make_up_for_a_late_batch(virtual_time: VirtualTime) -> None:
    late_s = 3 * STEP_S

    def source() -> Iterator[int]:
        yield from range(3)
        virtual_time.sleep(late_s)
        yield from range(3)

    student = PacedStudent(STEP_S)
    student.train(source())
    gaps_s = [later_s - earlier_s for earlier_s, later_s in pairwise(student.took_s)]
    expected_s = [STEP_S, STEP_S, STEP_S + late_s, STEP_S, STEP_S]
    assert gaps_s == pytest.approx(expected_s, abs=10 * VirtualTime.TICK_S)
    assert student.waited_s[3] == pytest.approx(late_s, abs=10 * VirtualTime.TICK_S)
    student = PacedStudent(1.0, took_s=[0.0, 5.0, 6.0, 8.0, 9.0, 12.0, 13.0])
    assert list(windows_s(student, skipped=1, per_window=2)) == [3.0, 4.0]
    unpaced = PacedStudent(0.0)  # takes each batch at once
    unpaced.train(range(100))
    assert len(unpaced.took_s) == 100
    assert unpaced.took_s[-1] - unpaced.took_s[0] <= 300 * VirtualTime.TICK_S


@pytest.mark.parametrize(("ready", "part"), [((30, 30), 1.0), ((30, 40), 1.0), ((30, 15), 0.5)])
def test_labels_made_before_the_windows_do_not_count(
    monkeypatch: pytest.MonkeyPatch, virtual_time: VirtualTime, ready: tuple[int, int], part: float
) -> None:
    figures = PropertyMock(side_effect=[ReaderStats(ready=batches) for batches in ready])

    def reader_of(source: Iterable[object], **_: object) -> MagicMock:
        reader = MagicMock(**{"__iter__.side_effect": lambda: iter(source)})
        reader.__enter__.return_value = reader
        type(reader).stats = figures
        return reader

    monkeypatch.setattr(streams, "DistilReader", reader_of)
    found = share(["a", "b"], teacher_s=0.01, step_s=0.005, window_s=0.01)  # 30 batches
    assert figures.call_count == len(ready)
    assert found.part.value == pytest.approx(part, rel=0.05)


@pytest.mark.parametrize("ratio", [0.8, 1.2])
def test_predictions_too_low_and_too_high_have_the_same_error(ratio: float) -> None:
    exact = error_of(Estimate(1.0, 0.98, 1.03))
    assert (exact.value, exact.low, exact.high) == pytest.approx((0.0, 0.0, 3.0))
    error = error_of(Estimate(ratio, ratio - 0.05, ratio + 0.05))
    assert (error.value, error.low, error.high) == pytest.approx((20.0, 15.0, 25.0))
    assert not Goal.judge("off", error, "<=", 10).holds
    assert Goal.judge("off", error, "<=", 16).holds


def test_a_beat_is_late_by_as_much_as_the_lease_moves_too_far() -> None:
    ttl_s = 2.0
    watch = LatencyProbe("127.0.0.1:1", "redis://127.0.0.1:1", "leases", "t1", ttl_s)
    beat_ms = 1000 * ttl_s / BEATS_PER_TTL
    beats = (5000 + beat_ms, 5000 + 2 * beat_ms + 70, 5000 + 3 * beat_ms)
    for deadline_ms in (None, 5000.0, 5000.0, *beats):
        watch.record_lease(deadline_ms)
    assert watch.take()["beat"] == pytest.approx([0.0, 0.07, 0.0])
    assert not watch.take()


def test_the_engine_of_a_reader_is_not_kept_on_the_core_of_the_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started_on: list[set[int]] = []

    class Reader:
        def __iter__(self) -> Iterator[None]:
            started_on.append(os.sched_getaffinity(0))
            return iter(())

    child = Mock()
    child.return_value.receive.return_value = {"model": "m"}
    child.return_value.ask.return_value = {"seconds": 1.0, "latencies": {}}
    monkeypatch.setattr(teacher, "Child", child)
    monkeypatch.setattr(teacher, "start_embedded", lambda: (Mock(), "redis://127.0.0.1:1"))
    monkeypatch.setattr(teacher, "start_teachers", lambda *_: [("127.0.0.1:1", Mock())])
    monkeypatch.setattr(teacher, "pin_process", lambda *_: None)
    monkeypatch.setattr(teacher, "DistilReader", lambda *_, **__: contextlib.nullcontext(Reader()))
    teacher.resnet(18, batches=1)
    assert started_on[0] == os.sched_getaffinity(0)


# --- reader


def turns(sample_s: float) -> ReaderTimes:
    return ReaderTimes(*([sample_s] * (MIN_ROUNDS + 1) for _ in range(4)))


@pytest.mark.parametrize(
    ("location", "shared_s", "pinned_s", "holds"),
    [
        (REMOTE, 0.5, 9.0, True),
        (REMOTE, 9.0, 0.4, False),
        (SAME_HOST, 9.0, 2.1, True),
        (SAME_HOST, 1.9, 9.0, False),
    ],
)
def test_two_teachers_are_compared_with_the_faster_of_two_plain_sockets(
    location: str, shared_s: float, pinned_s: float, holds: bool
) -> None:
    sockets = {SHARED: turns(shared_s), PINNED: turns(pinned_s), FLOOR: turns(0.1)}
    found = ReaderMeasurement(sockets, {1: turns(9.0), 2: turns(1.0), 8: turns(1.0)})
    of_raw, kept = reader.judge("uint8", location, found)
    assert of_raw.value == pytest.approx(min(shared_s, pinned_s))
    assert (of_raw.holds, kept.holds) == (holds, True)


def test_float32_over_tcp_is_only_compared_with_more_teachers() -> None:
    readers = {1: turns(1.0), 2: turns(0.5), 5: turns(0.7), 8: turns(0.6)}
    (kept,) = reader.judge("float32", REMOTE, ReaderMeasurement({SHARED: turns(9.0)}, readers))
    assert "rate of 5 teachers, times that of 2" in kept.name
    assert kept.value == pytest.approx(0.5 / 0.7)
    assert not kept.holds


# --- students


@pytest.mark.parametrize(
    ("code", "message"),
    [(None, "3 ranks of the benchmark did not end within 0 s"), (1, r"ended with \[1, 1, 1\]")],
)
def test_ranks_that_fail_or_do_not_end_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, code: int | None, message: str
) -> None:
    group = Mock(running=code is None, ranks=[Mock(code=code)] * students.RANKS)
    monkeypatch.setattr(students, "WorkerGroup", lambda *_: group)
    monkeypatch.setattr(students, "ShardServer", Mock())
    monkeypatch.setattr(students, "_DEADLINE_S", 0.0)
    with pytest.raises(ProcessFailed, match=message):
        students.run(quick=True)


# --- table 1, measured


@pytest.mark.parametrize(
    ("changed", "holds"),
    [
        ({}, [True] * 3),
        ({EDL_DIST: 1.05}, [False, True, True]),
        ({EDL_DIST: 1.2}, [False, False, True]),
        ({ONLINE: 3.5}, [True, True, False]),
    ],
)
def test_a_way_of_table_1_that_is_slow_fails_its_goals(
    changed: Mapping[str, float], holds: list[bool]
) -> None:
    expected = {N_TRAINING: 1.0, ONLINE: 3.0, EDL_DIST: 1.0, STEP_ALONE: 1.0, LABELLING_ALONE: 2.0}
    seconds = {way: [value] * MIN_ROUNDS for way, value in {**expected, **changed}.items()}
    assert [goal.holds for goal in table1.judge(1, seconds)] == holds


def test_cores_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {2, 5, 7}, raising=False)
    assert divided_cores(1) == ([7], [2, 5])
    assert divided_cores(2) == ([5, 7], [2])
    assert divided_cores(3) == divided_cores(16) == ([2, 5, 7], [2, 5, 7])
    assert two_cores() == (2, 5)

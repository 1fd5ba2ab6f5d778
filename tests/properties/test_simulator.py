"""Laws of the simulator's exact plane: they hold whatever happens to teachers and students.

The simulator drives the ledger, the flow control, the hedging and the assignment rule of the live
mesh, so these are laws of all of them together.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from edl.scheduler import simulator
from edl.scheduler.simulator.result import StudentStep
from edl.scheduler.simulator.scenario import FaultKind

some = settings(max_examples=settings().max_examples // 4)
few = settings(max_examples=settings().max_examples // 10)

BATCHES, ROWS = 40, 4


def seconds(least: float, most: float) -> st.SearchStrategy[float]:
    return st.floats(least, most).map(lambda value: round(value, 4))


LINKS = st.builds(
    simulator.NetworkLink,
    bandwidth_bytes_per_s=st.none() | st.sampled_from([2e5, 1e6]),
    latency_s=seconds(0, 0.02),
    jitter=st.sampled_from([0.0, 0.5]),
)


@st.composite
def student_groups(draw: st.DrawFn, jitter: float) -> simulator.StudentGroup:
    least = draw(st.integers(1, 3))
    return simulator.StudentGroup(
        "s",
        draw(seconds(0.002, 0.05)),
        count=draw(st.integers(1, 3)),
        batch=ROWS,
        overhead_s=draw(seconds(0, 0.02)),
        jitter=jitter,
        source_s=draw(st.sampled_from([0.0, 0.03])),
        upper=draw(st.sampled_from([0.5, 4.0, 12.0])),
        lower=draw(st.sampled_from([0.0, 0.4])),
        teachers_min=least,
        teachers_max=least + draw(st.integers(0, 4)),
        input_bytes=1000.0,
        label_bytes=100.0,
        join_every_s=draw(st.sampled_from([0.0, 0.7])),
        together=draw(st.booleans()),
    )


@st.composite
def teacher_groups(
    draw: st.DrawFn, name: str, jitter: float, leave: bool
) -> simulator.TeacherGroup:
    return simulator.TeacherGroup(
        name,
        draw(seconds(0.005, 0.2)),
        count=draw(st.integers(1, 4)),
        batch_overhead_s=draw(seconds(0, 0.02)),
        lanes=draw(st.integers(1, 2)),
        jitter=jitter,
        join_every_s=draw(st.sampled_from([0.0, 1.0])),
        start_s=0.5,
        leave_per_minute=draw(st.sampled_from([0.0, 0.99])) if leave else 0.0,
        leaves_by=draw(st.sampled_from(["crash", "hang", "drain"])),
        back_after_s=draw(st.sampled_from([None, 1.0])),
    )


@st.composite
def scenario_faults(draw: st.DrawFn) -> simulator.ScenarioFault:
    kind: FaultKind = draw(st.sampled_from(["crash", "hang", "drain", "slow"]))
    return simulator.ScenarioFault(
        at_s=draw(seconds(0.1, 3)),
        group=draw(st.sampled_from("ab")),
        kind=kind,
        count=draw(st.integers(1, 3)),
        for_s=draw(st.none() | seconds(0.1, 8)) if kind in ("hang", "slow") else None,
        factor=draw(st.sampled_from([0.5, 3.0])),
    )


@st.composite
def scenarios(draw: st.DrawFn, jitter: float, faults: bool = True) -> simulator.Scenario:
    """Meshes where teachers of two groups fail; one teacher, of a third, does not."""
    rock = simulator.TeacherGroup("rock", 0.02, jitter=jitter)
    groups = *(draw(teacher_groups(name, jitter, leave=faults)) for name in "ab"), rock
    return simulator.Scenario(
        (draw(student_groups(jitter)),),
        groups,
        seed=draw(st.integers(0, 1000)),
        batches=BATCHES,
        link=draw(LINKS),
        ttl_s=2.0,
        faults=tuple(draw(st.lists(scenario_faults(), min_size=2, max_size=6))) if faults else (),
        window=draw(st.integers(1, 3)),
    )


def run(scenario: simulator.Scenario) -> simulator.SimulationResult:
    return simulator.simulate(scenario, random.Random, keep_batches=True)


@given(scenarios(jitter=0.4))
def test_every_batch_is_trained_once_in_order_with_labels_of_its_own(
    scenario: simulator.Scenario,
) -> None:
    result = run(scenario)
    trained: dict[str, list[StudentStep]] = defaultdict(list)
    for step in result.steps:
        trained[step.student].append(step)
    labels = Counter((one.student, one.batch) for one in result.requests if one.used)
    labelled_at = {(one.student, one.batch): one.answered_s for one in result.requests if one.used}
    for student in result.students:
        steps = trained[student.name]
        assert [step.batch for step in steps] == list(range(BATCHES))
        assert all(first.ended_s <= second.began_s for first, second in pairwise(steps))
        for step in steps:
            assert labels[student.name, step.batch] == 1
            assert labelled_at[student.name, step.batch] <= step.began_s
        spent_s = student.training_s + student.starved_s + student.source_wait_s
        assert spent_s <= student.ended_s - student.began_s + 1e-6
    assert sum(group.batches for group in result.teachers) == BATCHES * len(result.students)


@some
@given(scenarios(jitter=0.4))
def test_a_device_works_on_one_request_on_each_lane_and_on_none_when_it_is_gone(
    scenario: simulator.Scenario,
) -> None:
    result = run(scenario)
    ended = {h.subject: h.at_s for h in result.mesh_events if h.kind in ("crash", "leave")}
    served = {h.subject: h.at_s for h in result.mesh_events if h.kind == "serve"}
    lanes = {group.name: group.lanes for group in scenario.teachers}
    works: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for one in result.requests:
        assert one.sent_s <= one.began_s < one.ended_s <= one.answered_s
        assert served[one.teacher] <= one.began_s
        if one.teacher in ended:
            assert one.ended_s <= ended[one.teacher]
        works[one.teacher] += [(one.ended_s, -1), (one.began_s, 1)]
    for teacher, moments in works.items():
        busy = 0
        for _, step in sorted(moments):
            busy += step
            assert 0 <= busy <= lanes[teacher.partition("/")[0]]
    for group in result.teachers:
        assert 0 <= group.utilization <= 1 + 1e-9


@few
@given(scenarios(jitter=0.0, faults=False))
def test_without_trouble_nothing_is_sent_twice_or_in_vain(scenario: simulator.Scenario) -> None:
    result = run(scenario)
    assert all(student.resends == 0 for student in result.students)
    copies = sum(student.hedges for student in result.students)
    assert sum(not one.used for one in result.requests) <= copies

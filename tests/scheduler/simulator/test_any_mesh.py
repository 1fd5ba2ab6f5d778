"""Whatever the mesh: no batch is made or lost, and nobody works longer than it is there."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edl.scheduler.simulator import Fault, Scenario, simulate

from .meshes import STEP_S, WORK_S, students, teachers

MESHES = st.builds(
    lambda student, teacher, **settings: Scenario(
        (student,), (teacher,), duration_s=60.0, **settings
    ),
    st.builds(
        students,
        st.integers(1, 4),
        source_s=st.sampled_from([0.0, 0.05, 0.4]),
        upper=st.sampled_from([3.0, 16.0]),
        lower=st.sampled_from([0.0, 2.0]),
        batches=st.sampled_from([None, 1, 40]),
        together=st.booleans(),
        join_every_s=st.sampled_from([0.0, 7.0]),
        leave_s=st.sampled_from([None, 45.0]),
    ),
    st.builds(
        teachers,
        st.integers(0, 6),
        lanes=st.integers(1, 2),
        leave_per_minute=st.sampled_from([0.0, 0.5]),
        leaves_by=st.sampled_from(["crash", "hang", "drain"]),
        back_after_s=st.sampled_from([None, 3.0]),
        start_s=st.just(2.0),
    ),
    seed=st.integers(0, 100),
    faults=st.sampled_from(
        [
            (),
            (Fault(20, "t", "hang", 2, for_s=15.0), Fault(25, "t", "slow", 2, for_s=5.0)),
            (Fault(20, "s", "crash"), Fault(30, "t", "drain", 9)),
        ]
    ),
)


@pytest.mark.timeout(600)  # 200 examples are 400 simulated minutes: over 120 s beside other work
@given(MESHES)
@example(  # the student dies while its former teacher finishes
    Scenario(
        (students(source_s=0.4),),
        (teachers(1, leave_per_minute=0.5, leaves_by="drain", start_s=2.0),),
        duration_s=60.0,
        seed=90,
        faults=(Fault(20, "s", "crash"),),
    )
)
@example(  # the other rank's labels run out and come back within one event
    Scenario(
        (students(2, source_s=0.05, upper=3.0, lower=0.0, together=True),),
        (teachers(3, lanes=2, leave_per_minute=0.5, back_after_s=3.0, start_s=2.0),),
        duration_s=60.0,
        seed=17,
        faults=(Fault(20, "t", "hang", 2, for_s=15.0), Fault(25, "t", "slow", 2, for_s=5.0)),
    )
)
def test_nothing_is_made_or_lost(scenario: Scenario) -> None:
    result = simulate(scenario, random.Random)
    (group,) = scenario.students
    labelled = sum(teacher.batches for teacher in result.teachers)
    trained = sum(student.batches for student in result.students)
    buffered = sum((student.most_volume + 1) for student in result.students)
    assert trained - 0.01 <= labelled <= trained + buffered
    for student in result.students:
        there_s = student.ended_s - student.began_s
        assert student.batches <= (group.batches or 10**9)
        spent_s = student.training_s + student.starved_s + student.source_wait_s
        assert spent_s <= there_s + 1e-6
        assert student.batches <= there_s / STEP_S + 1
    for teacher in result.teachers:
        lanes = scenario.teachers[0].lanes
        assert teacher.busy_s <= teacher.there_s * lanes * 1.02 + 2 * WORK_S
    assert simulate(replace(scenario), random.Random) == result

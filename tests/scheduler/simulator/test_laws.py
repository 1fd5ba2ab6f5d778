"""Laws of the exact plane where students fail too, requests are cut, and teachers autoscaled.

The laws of whole batches and of devices are in `tests/properties/test_simulator.py`.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from edl.scheduler.autoscale import AutoscaleConfig
from edl.scheduler.simulator import Fault, Link, Result, Scenario, simulate
from edl.tests.scheduler.simulator.meshes import FREE, kinds, students, teachers

FAULTS = st.builds(
    lambda at_s, group, kind, count, for_s: Fault(
        at_s, group, "crash" if (group, kind) == ("s", "hang") else kind, count, for_s
    ),
    st.sampled_from([0.0, 0.3, 1.0, 2.5, 4.0]),
    st.sampled_from(["t", "t", "s"]),
    st.sampled_from(["crash", "hang", "drain", "slow"]),
    st.integers(1, 3),
    st.sampled_from([None, 0.5, 3.0]),
)
MESHES = st.builds(
    lambda student, teacher, **settings: Scenario(
        (student,), (teacher,), duration_s=10.0, ttl_s=1.0, **settings
    ),
    st.builds(
        students,
        st.integers(1, 3),
        t_s_s=st.sampled_from([0.001, 0.02]),
        overhead_s=st.sampled_from([0.03, 0.1]),
        jitter=st.sampled_from([0.0, 0.5]),
        source_s=st.sampled_from([0.0, 0.2]),
        request_samples=st.sampled_from([None, 3, 20]),
        upper=st.sampled_from([0.5, 4.0]),
        lower=st.just(0.2),
        batches=st.sampled_from([None, 1, 20]),
        together=st.booleans(),
        join_every_s=st.sampled_from([0.0, 1.0]),
        leave_s=st.sampled_from([None, 6.0]),
    ),
    st.builds(
        teachers,
        st.sampled_from([0, 1, 2, 5]),
        t_t_s=st.sampled_from([1e-9, 0.01, 0.1]),
        lanes=st.integers(1, 2),
        jitter=st.sampled_from([0.0, 0.5]),
        leave_per_minute=st.sampled_from([0.0, 1.0]),
        leaves_by=st.sampled_from(["crash", "hang", "drain"]),
        back_after_s=st.sampled_from([None, 0.0]),
        start_s=st.sampled_from([0.0, 1.0]),
    ),
    seed=st.integers(0, 100),
    link=st.sampled_from([FREE, Link(1e7, 0.01, 0.5)]),
    autoscale=st.sampled_from([None, AutoscaleConfig(max=3, freeze_s=2.0, idle_to_zero_s=1.0)]),
    faults=st.lists(FAULTS, max_size=4).map(tuple),
)


@settings(max_examples=40)
@given(MESHES)
def test_every_batch_is_trained_once_and_in_order_and_nothing_is_made_of_nothing(
    scenario: Scenario,
) -> None:
    result = simulate(scenario, random.Random, keep_batches=True)

    assert result.virtual_s == 10.0
    steps, rows = defaultdict(list), Counter[str]()
    for step in result.stepped:
        steps[step.student].append(step.batch)
    for answer in result.labelled:
        rows[answer.student] += answer.rows * answer.used
    for student in result.students:
        assert steps[student.name] == list(range(student.batches))
        pulled = scenario.students[0].batches or 10**9
        assert student.samples <= rows[student.name] <= pulled * scenario.students[0].batch
        there_s = student.ended_s - student.began_s
        assert student.training_s + student.starved_s <= there_s + 1e-6
    (group,) = result.teachers
    assert 0 <= group.busy_s <= group.there_s * scenario.teachers[0].lanes + 1e-6
    if scenario.autoscale is not None:
        _keeps_to_its_settings(result, scenario.autoscale)


def _keeps_to_its_settings(result: Result, config: AutoscaleConfig) -> None:
    assert all(point.desired is None or point.desired <= config.max for point in result.points)
    _, *changed = (at for at, _ in kinds(result, "desired"))  # the first says what there is
    assert all(later - earlier >= config.freeze_s for earlier, later in pairwise(changed))

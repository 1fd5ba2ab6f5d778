"""What Algorithm 1 does for one student, told as stories in virtual time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.scheduler.flow import FlowConfig
from edl.tests.properties.mesh_model import BATCH_BYTES, LABEL_BYTES, Mesh

pytestmark = pytest.mark.timeout(1800)  # seconds, for the nightly counts

WHOLE = BATCH_BYTES + LABEL_BYTES
ROOMY = FlowConfig(upper_bytes=20 * WHOLE, lower_bytes=10 * WHOLE)


@pytest.mark.parametrize(("teacher_s", "n"), [(0.05, 1), (0.1, 1), (0.25, 3), (0.5, 5)])
def test_n_teachers_come_and_the_student_does_not_wait(
    rng: random.Random, teacher_s: float, n: int
) -> None:
    mesh = Mesh(ROOMY, rng, step_s=0.1, speed_s=teacher_s, cluster=20)
    mesh.run(20.0)
    assert mesh.decision.needed == n
    waited_s, taken = mesh.memory.starved_s, len(mesh.taken)
    mesh.run(60.0)
    assert mesh.memory.starved_s - waited_s < 0.02 * 60
    assert len(mesh.taken) - taken > 0.98 * 60 / 0.1
    assert mesh.decision.want <= n + 1


def test_a_throttled_teacher_triples_n(rng: random.Random) -> None:
    mesh = Mesh(ROOMY, rng, step_s=0.1, speed_s=0.2, cluster=20)
    mesh.run(10.0)
    assert mesh.decision.needed == 2
    mesh.speed_s = 0.6
    for teacher in mesh.teachers.values():
        teacher.seconds = 0.6
    mesh.run(10.0)
    assert mesh.decision.needed == 6
    assert len(mesh.assigned) >= 6


@given(
    seed=st.integers(0, 2**32 - 1),
    source_s=st.floats(0.11, 3.0),
    teacher_s=st.floats(0.02, 0.1),
    window=st.integers(1, 3),
)
def test_a_slow_source_never_raises_the_want(
    seed: int, source_s: float, teacher_s: float, window: int
) -> None:
    """The source takes longer than both a teacher and the student, so it alone is waited for."""
    mesh = Mesh(ROOMY, random.Random(seed), source_s=source_s, step_s=0.1)
    mesh.join("only", teacher_s, window)
    mesh.run(30.0)
    assert set(mesh.wants) == {1}
    assert mesh.memory.source_wait_s > 0
    assert len(mesh.taken) >= 30 / source_s - 3


def test_a_source_that_bursts_is_a_slow_source(rng: random.Random) -> None:
    mesh = Mesh(ROOMY, rng, step_s=0.1)
    mesh.join("only", 0.1, window=2)
    for _ in range(20):
        mesh.source_s = 0.0
        mesh.run(0.3)
        mesh.source_s = 4.0
        mesh.run(4.0)
    assert set(mesh.wants) == {1}


@settings(max_examples=max(10, settings().max_examples // 5))  # each is ten seconds of a mesh
@given(seed=st.integers(0, 2**32 - 1), upper=st.integers(1, WHOLE - 1), lower=st.booleans())
def test_ut_below_one_batch_slows_the_stream_and_never_stops_it(
    seed: int, upper: int, lower: bool
) -> None:
    config = FlowConfig(upper_bytes=upper, lower_bytes=upper - 1 if lower else 0)
    mesh = Mesh(config, random.Random(seed), step_s=0.01)
    mesh.join("a", 0.1)
    mesh.join("b", 0.1)
    mesh.run(10.0)
    assert len(mesh.taken) > 40
    assert mesh.memory.blocked_s > 0


def test_memory_stays_within_ut_one_batch_per_window_and_the_read_ahead(rng: random.Random) -> None:
    mesh = Mesh(ROOMY, rng, step_s=1.0)  # a student much slower than its teachers
    for name in "abcd":
        mesh.join(name, 0.01, window=2)
    volumes = []
    for _ in range(600):
        mesh.run(0.1)
        volumes.append(mesh.ledger.volume_bytes)
    assert max(volumes) > ROOMY.upper_bytes  # it did come to the threshold
    assert max(volumes) <= ROOMY.upper_bytes + (8 + 8) * WHOLE
    assert min(volumes[100:]) < ROOMY.lower_bytes + WHOLE  # and went down to the other one


def test_what_a_dead_teacher_had_is_sent_again_at_once_though_pulling_is_paused(
    rng: random.Random,
) -> None:
    mesh = Mesh(ROOMY, rng, step_s=1.0)
    mesh.join("quick", 0.01, window=8)
    while mesh.decision.state != "blocked":
        mesh.step()
    mesh.run(1.0)
    mesh.join("doomed", 5.0, window=2)
    while not mesh.ledger.in_flight_at("doomed"):
        mesh.step()
    while mesh.decision.pull or mesh.ledger.in_flight_at("quick"):
        mesh.step()
    had = mesh.batches_at("doomed")
    assert had
    assert mesh.ledger.volume_bytes > ROOMY.lower_bytes
    mesh.lose("doomed")
    assert mesh.resent_at == [mesh.now] * len(had)
    assert mesh.batches_at("quick") == had


def test_surplus_teachers_are_given_back(rng: random.Random) -> None:
    """The student becomes four times slower, and t_s, a low quantile, is late to say so."""
    mesh = Mesh(ROOMY, rng, step_s=0.1, speed_s=0.4, cluster=10)
    mesh.run(10.0)
    assert len(mesh.assigned) == 4
    mesh.steps.add = lambda measurement: None  # type: ignore[method-assign]
    mesh.step_s = 0.4
    mesh.run(120.0)
    assert mesh.decision.needed == 4
    assert len(mesh.assigned) == 2  # one would do, but without any margin
    mesh.step_s = 0.1
    mesh.run(20.0)
    assert len(mesh.assigned) >= 4


def test_what_no_ratio_says_is_found_by_starving(rng: random.Random) -> None:
    """Teachers report half of the time that they really take: n is too low, the buffer tells."""
    mesh = Mesh(ROOMY, rng, step_s=0.1, speed_s=0.2, cluster=10)
    mesh.steps.add(0.2)
    mesh.steps.add = lambda measurement: None  # type: ignore[method-assign]
    mesh.run(10.0)
    assert mesh.decision.needed == 1
    assert mesh.decision.want == 2
    starved_s = mesh.memory.starved_s
    mesh.run(10.0)
    assert mesh.memory.starved_s == pytest.approx(starved_s, abs=0.3)

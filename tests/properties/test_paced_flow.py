"""What is pulled, how many teachers are wanted, what slow ones cost: minutes of virtual time."""

from __future__ import annotations

import random
from itertools import pairwise
from math import ceil, exp

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edl.scheduler import request_size, windows
from edl.tests.properties.paced_mesh import BATCH_BYTES, PacedMesh, holds

pytestmark = pytest.mark.system  # seconds of CPU for each

few = settings(max_examples=max(2, settings().max_examples // 50))  # each is minutes of a mesh
seeds = st.integers(0, 2**32 - 1)


def check_pulling(mesh: PacedMesh) -> None:
    """It paused above `ut`, went on below `lt`, by turns; its event log says so."""
    config = mesh.config
    for one, following in pairwise(mesh.turns):
        assert one[1].pulling != following[1].pulling
    for _, turn in mesh.turns:
        threshold = config.lower_bytes if turn.pulling else config.upper_bytes
        assert turn.threshold_bytes == threshold
        assert turn.pulling == (turn.volume_bytes < max(config.lower_bytes, 1))
        assert turn.pulling != (turn.volume_bytes > config.upper_bytes)
        assert str(turn.volume_bytes) in turn.why or not turn.volume_bytes


def test_a_slow_student_is_never_waited_for_and_its_buffer_is_bounded() -> None:
    """Ten minutes of a student that is twenty times slower than each of its four teachers."""
    mesh = PacedMesh(holds(20), random.Random(0), step_s=1.0)
    for name in "abcd":
        mesh.join(name, 0.05)
    mesh.run(600.0)
    assert len(mesh.taken_at) == 600
    assert mesh.ledger.hedges == 0
    assert mesh.named_at == {}
    upper_bytes = mesh.config.upper_bytes
    assert upper_bytes < mesh.most_volume <= upper_bytes + 4 * 2 * BATCH_BYTES
    assert len(mesh.turns) > 40
    check_pulling(mesh)
    first_s, first = mesh.turns[0]
    assert not first.pulling
    assert first_s < 2.0


@few
@given(
    upper=st.integers(1, 30),
    per_request=st.sampled_from([None, 8, 48, 100]),
    teachers=st.integers(1, 4),
    batch_s=st.sampled_from([0.01, 0.05, 0.2]),
    step_s=st.floats(0.02, 0.5),
    seed=seeds,
)
def test_the_volume_is_bounded_whatever_the_sizes(
    upper: int, per_request: int | None, teachers: int, batch_s: float, step_s: float, seed: int
) -> None:
    mesh = PacedMesh(holds(upper), random.Random(seed), step_s, most_rows=per_request)
    for index in range(teachers):
        mesh.join(f"t{index}", batch_s).jitter = 0.3
    mesh.run(20.0)
    bound = mesh.config.upper_bytes + max(mesh.most_windows, 1) * BATCH_BYTES
    assert mesh.most_volume <= bound
    assert len(mesh.taken_at) > 20
    check_pulling(mesh)


@few
@given(n=st.integers(3, 8), beyond=st.floats(0.5, 0.9), told=st.floats(0.2, 0.8), seed=seeds)
@example(n=5, beyond=0.8, told=0.88, seed=0)
def test_two_short_of_n_it_asks_for_one_more_twice(
    n: int, beyond: float, told: float, seed: int
) -> None:
    """Teachers tell less time than they need: by their word n - 2 are enough, and n are.

    `beyond`: how much more than n - 1 teachers are needed; `told`: more than n - 3 by their word.
    """
    needed = n - 1 + beyond
    batch_s = 0.1 * needed
    mesh = PacedMesh(
        holds(20), random.Random(seed), spare_s=batch_s, spares=n + 3, told=(n - 3 + told) / needed
    )
    mesh.run(90.0)
    assert mesh.decision.needed == n - 2
    wants = [mesh.config.teachers_min, *(want for _, want in mesh.wants)]
    assert wants[-3:] == [n - 2, n - 1, n]
    assert len(mesh.ledger.teachers) == n
    assert mesh.rate(60.0) == pytest.approx(10.0, rel=0.03), "as fast as the student alone"
    mesh.run(60.0)
    assert len(mesh.wants) == len(wants) - 1, "and stays there"


@few
@given(ratio=st.floats(1.2, 8.0), fall_s=st.sampled_from([0.0, 30.0]), seed=seeds)
@example(ratio=5.0, fall_s=0.0, seed=0)
@example(ratio=5.0, fall_s=30.0, seed=0)
def test_with_teachers_twice_as_fast_fewer_are_assigned(
    ratio: float, fall_s: float, seed: int
) -> None:
    """`fall_s`: so long the coordinator takes to believe a lower want."""
    batch_s = 0.1 * ratio
    mesh = PacedMesh(holds(20), random.Random(seed), spare_s=batch_s, spares=12, fall_s=fall_s)
    mesh.run(60.0)
    assert mesh.decision.needed == ceil(ratio)
    before = mesh.rate(60.0)
    mesh.spare_s = batch_s / 2
    for teacher in mesh.teachers.values():
        teacher.batch_s = batch_s / 2
    mesh.run(60.0 + fall_s)
    assert mesh.decision.needed == ceil(ratio / 2)
    assert len(mesh.ledger.teachers) <= ceil(ratio / 2)
    assert mesh.rate(120.0) == pytest.approx(before, rel=0.02)
    assert len(mesh.ledger.teachers) <= ceil(ratio / 2), "and it stays so"


@few
@given(
    ratio=st.integers(2, 8).flatmap(lambda n: st.floats(n - 0.1, n + 0.1)),
    jitter=st.sampled_from([0.0, 0.03, 0.1]),
    told=st.sampled_from([1.0, 0.95]),
    seed=seeds,
)
@example(ratio=6.98, jitter=0.1, told=1.0, seed=1)
@example(ratio=7.1, jitter=0.1, told=1.0, seed=1)
def test_at_the_border_of_n_the_want_settles(
    ratio: float, jitter: float, told: float, seed: int
) -> None:
    """One that came back is not given back again, and noise does not move n to and fro."""
    mesh = PacedMesh(
        holds(20),
        random.Random(seed),
        spare_s=0.1 * ratio,
        spares=12,
        told=told,
        spare_jitter=jitter,
    )
    mesh.run(60.0)
    begun = len(mesh.wants)
    mesh.run(240.0)
    wants = [want for _, want in mesh.wants[max(begun - 1, 0) :]]
    falls = [after for before, after in pairwise(wants) if after < before]
    assert len(falls) == len(set(falls)), f"down to one number twice: {wants}"
    assert len(wants) <= 4, "each of the two beside n is tried once"
    assert abs(mesh.decision.want - ratio) < 2


@few
@given(
    step_s=st.floats(0.02, 0.2), slower=st.floats(1.5, 20.0), ratio=st.floats(1.2, 6.0), seed=seeds
)
@example(step_s=0.1, slower=3.0, ratio=1.6, seed=0)
def test_a_slow_source_does_not_move_the_want(
    step_s: float, slower: float, ratio: float, seed: int
) -> None:
    """`slower` than the student; `ratio`: of a teacher's time to the source's."""
    source_s = step_s * slower
    mesh = PacedMesh(
        holds(20),
        random.Random(seed),
        step_s,
        source_s=source_s,
        spare_s=ratio * source_s,
        spares=12,
    )
    mesh.run(20.0 + 20 * source_s)
    want = mesh.decision.want
    told = list(mesh.wants)
    mesh.run(300.0)
    assert mesh.wants == told
    assert want == ceil(ratio), "as many as keep up with the source"
    assert mesh.flow.source_wait_s > 0.2 * 300.0 * (1 - 1 / slower)


def test_a_source_that_becomes_slow_does_not_raise_the_want() -> None:
    mesh = PacedMesh(holds(20), random.Random(0), spare_s=0.5, spares=8)
    mesh.run(60.0)
    want, told = mesh.decision.want, len(mesh.wants)
    mesh.source_s = 0.5
    mesh.run(120.0)
    assert max([w for _, w in mesh.wants[told:]], default=0) < want
    mesh.source_s = 0.0
    mesh.run(30.0)
    assert mesh.rate(60.0) == pytest.approx(10.0, rel=0.01)


def pool(mesh: PacedMesh, batch_s: float = 0.1) -> None:
    for name in "abcd":
        mesh.join(name, batch_s)


@few
@given(
    seed=st.integers(0, 2**32 - 1),
    batch_s=st.floats(0.02, 0.3),
    others=st.integers(2, 5),
    slower=st.floats(4.0, 20.0),
    jitter=st.sampled_from([0.0, 0.2]),
)
@example(seed=0, batch_s=0.1, others=3, slower=10.0, jitter=0.0)
def test_a_slow_teacher_adds_what_it_can_and_is_named(
    seed: int, batch_s: float, others: int, slower: float, jitter: float
) -> None:
    mesh = PacedMesh(holds(300), random.Random(seed), step_s=0.001)
    for index in range(others):
        mesh.join(f"t{index}", batch_s).jitter = jitter
    slow = mesh.join("slow", batch_s)
    slow.jitter = jitter
    mesh.run(100 * batch_s)
    assert not mesh.named_at
    slow.batch_s *= slower
    since = mesh.now
    mesh.run(30.0)
    assert set(mesh.named_at) == {"slow"}
    assert mesh.named_at["slow"] - since < 30.0
    assert mesh.straggling.named == {"slow"}, "not only while it seemed to be silent"
    sum_of_rates = (others + 1 / slower) / (batch_s * exp(jitter**2 / 2))  # of lognormal times
    # Batches are delivered in order, so in bursts with the slow one's: over many of those.
    assert mesh.rate(60 * slower * batch_s) >= 0.95 * sum_of_rates
    assert not slow.standing.ejected
    assert mesh.ledger.hedges <= 0.05 * mesh.ledger.sent


@few
@given(
    seed=st.integers(0, 2**32 - 1),
    batch_s=st.floats(0.02, 0.3),
    teachers=st.integers(2, 5),
    spare=st.floats(1.0, 2.5),
    stopped_s=st.floats(0.2, 12.0),
)
@example(seed=0, batch_s=0.02, teachers=4, spare=1.1, stopped_s=8.0)
@example(seed=0, batch_s=0.3, teachers=4, spare=2.0, stopped_s=8.0)
def test_a_stopped_teacher_is_hardly_noticed_with_two_seconds_of_volume(
    seed: int, batch_s: float, teachers: int, spare: float, stopped_s: float
) -> None:
    """`spare`: what the teachers could do in times of what the student takes, before one stops."""
    step_s = batch_s / teachers * spare
    mesh = PacedMesh(holds(ceil(2.0 / step_s)), random.Random(seed), step_s=step_s)
    names = [f"t{index}" for index in range(teachers)]
    for name in names:
        mesh.join(name, batch_s)
    mesh.run(20.0)
    before, since = mesh.ledger.hedges, mesh.now
    mesh.stop("t0")
    mesh.run(stopped_s)
    stopped = mesh.teachers["t0"]
    if stopped_s > 6.0:
        assert stopped.standing.ejected
        assert mesh.named_at["t0"] - since < 5.0
        assert mesh.ledger.hedges - before in (1, 2), "all that it had, and nothing else"
    mesh.go_on("t0")
    mesh.run(10.0)
    assert mesh.longest_pause(since) <= 1.5
    if stopped_s <= 8.0:  # the longer it was away, the more rarely it is probed
        assert not stopped.standing.ejected
        labelled = stopped.labelled
        mesh.run(3.0)
        assert stopped.labelled > labelled, "it has its share again"


@few
@given(
    seed=st.integers(0, 2**32 - 1),
    turns=st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(0.01, 8.0)), min_size=1, max_size=12
    ),
)
def test_teachers_that_stop_and_go_on_lose_nothing(
    seed: int, turns: list[tuple[str, float]]
) -> None:
    """While "d" is healthy no pause is long, and in the end all have their share again."""
    mesh = PacedMesh(holds(40), random.Random(seed), step_s=0.05)
    pool(mesh)
    mesh.run(20.0)
    start = mesh.now
    for name, after_s in turns:
        (mesh.go_on if mesh.teachers[name].stopped else mesh.stop)(name)
        mesh.run(after_s)
    assert mesh.longest_pause(start) <= 1.5
    for name in "abc":
        mesh.go_on(name)
    mesh.run(200.0)  # every probe has been answered by then
    assert not any(teacher.standing.ejected for teacher in mesh.teachers.values())
    assert mesh.rate(30.0) == pytest.approx(20.0, rel=0.02)
    mesh.ledger.validate()


@few
@given(
    seed=st.integers(0, 2**32 - 1),
    times=st.lists(st.floats(0.02, 0.6), min_size=2, max_size=5),
    jitter=st.sampled_from([0.0, 0.1, 0.3]),
    step_s=st.sampled_from([0.001, 0.1]),
)
def test_in_calm_weather_hedges_are_few_and_nobody_is_ejected(
    seed: int, times: list[float], jitter: float, step_s: float
) -> None:
    mesh = PacedMesh(holds(60), random.Random(seed), step_s=step_s)
    for index, seconds in enumerate(times):
        mesh.join(f"t{index}", seconds).jitter = jitter
    mesh.run(30.0)
    newcomers = 2 * len(times)  # nobody knows their speeds before they have answered
    assert mesh.ledger.hedges <= 0.05 * mesh.ledger.sent + newcomers
    before, sent = mesh.ledger.hedges, mesh.ledger.sent
    mesh.run(30.0)
    assert mesh.ledger.hedges - before <= 0.05 * (mesh.ledger.sent - sent) + mesh.hedge.burst
    assert all(teacher.standing.ejections == 0 for teacher in mesh.teachers.values())


@pytest.mark.parametrize(("travel_s", "window", "rate"), [(0.14, 4, 19.4), (0.01, 2, 19.8)])
def test_a_far_teacher_gets_a_wider_window_and_is_just_as_busy(
    travel_s: float, window: int, rate: float
) -> None:
    mesh = PacedMesh(holds(60), random.Random(0), step_s=0.001)
    teacher = mesh.join("far", 0.05, travel_s)
    mesh.run(60.0)
    assert windows.size(teacher.window, mesh.window) == window
    assert mesh.rate(60.0) >= rate


def test_a_teacher_that_is_slow_to_begin_gets_larger_requests() -> None:
    """20 ms for a request and 1 ms for each row: 615 rows/s by 32, 927 by 256."""
    mesh = PacedMesh(holds(200), random.Random(0), 0.001, auto=request_size.SizeConfig())
    for name in "ab":
        mesh.join(name, 0.032).request_s = 0.02
    mesh.run(30.0)
    assert {mesh.rows_for(teacher) for teacher in mesh.teachers.values()} == {256}
    assert mesh.rate(30.0) * 32 >= 0.98 * 2 * 927.5
    assert mesh.ledger.hedges <= 4

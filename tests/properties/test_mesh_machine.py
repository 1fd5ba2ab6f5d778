"""Ledger and flow control together, in virtual time, under whatever may happen to a mesh.

Every run ends with one healthy teacher and nothing new going wrong: then the stream must come to
its end, each batch taken once and in order, within the time that one teacher needs.
"""

from __future__ import annotations

import random
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from edl.scheduler.flow import FlowConfig
from edl.tests.properties.mesh_model import BATCH_BYTES, LABEL_BYTES, ROWS, TTL_S, Mesh, Mishap

MISHAPS: tuple[Mishap, ...] = ("fail", "refuse")
nth = st.integers(0, 30)


class MeshMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.impatience = mock.patch("edl.scheduler.flow.SURPLUS_WINDOW_S", 3.0)
        self.impatience.start()

    @initialize(
        seed=st.integers(0, 2**32 - 1),
        upper=st.integers(1, 12 * BATCH_BYTES),
        lower=st.floats(0, 1, exclude_max=True),
        step_s=st.sampled_from([0.01, 0.1, 1.0]),
        source_s=st.sampled_from([0.0, 0.01, 0.3]),
        cluster=st.integers(0, 4),
    )
    def the_mesh_starts(
        self, seed: int, upper: int, lower: float, step_s: float, source_s: float, cluster: int
    ) -> None:
        config = FlowConfig(upper, int(upper * lower), teachers_max=6)
        self.mesh = Mesh(
            config, random.Random(seed), source_s=source_s, step_s=step_s, cluster=cluster
        )

    def teacher(self, index: int) -> str:
        return list(self.mesh.teachers)[index % len(self.mesh.teachers)]

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.5, 2.0]))
    def time_goes_by(self, seconds: float) -> None:
        self.mesh.run(seconds)

    @rule(
        name=st.sampled_from("abcd"),
        seconds=st.sampled_from([0.02, 0.2, 1.0]),
        w=st.integers(1, 3),
        most_rows=st.none() | st.sampled_from([3, ROWS, 25]),
    )
    def a_teacher_joins(self, name: str, seconds: float, w: int, most_rows: int | None) -> None:
        if name not in self.mesh.teachers:
            self.mesh.join(name, seconds, w, most_rows)

    @precondition(lambda self: self.mesh.teachers)
    @rule(index=nth, how=st.sampled_from(["dies", "hangs", "is revoked"]))
    def a_teacher_goes(self, index: int, how: str) -> None:
        name = self.teacher(index)
        if how == "dies":
            self.mesh.lose(name)
        elif how == "hangs":
            self.mesh.hang(name)
        elif name in self.mesh.assigned:
            self.mesh.revoke(name)

    @precondition(lambda self: self.mesh.teachers)
    @rule(index=nth, factor=st.sampled_from([0.3, 3.0]))
    def a_teacher_changes_speed(self, index: int, factor: float) -> None:
        teacher = self.mesh.teachers[self.teacher(index)]
        teacher.seconds = min(max(teacher.seconds * factor, 0.01), 1.0)

    @precondition(lambda self: self.mesh.teachers)
    @rule(index=nth, mishaps=st.lists(st.sampled_from(MISHAPS), min_size=1, max_size=4))
    def a_teacher_has_mishaps(self, index: int, mishaps: list[Mishap]) -> None:
        self.mesh.teachers[self.teacher(index)].mishaps += mishaps

    @rule(ahead=st.integers(0, 5))
    def a_poison_batch_is_coming(self, ahead: int) -> None:
        batch = self.mesh.pulled + ahead
        if not {batch - 1, batch + 1} & self.mesh.venomous:  # a teacher has something to label
            self.mesh.venomous.add(batch)

    @rule(source_s=st.sampled_from([0.0, 0.05, 1.0]), step_s=st.sampled_from([0.01, 0.1, 2.0]))
    def source_and_student_change_speed(self, source_s: float, step_s: float) -> None:
        self.mesh.source_s, self.mesh.step_s = source_s, step_s

    @rule(how=st.sampled_from(["engine", "engine", "epoch", "model"]))
    def all_starts_over(self, how: str) -> None:
        match how:
            case "engine":
                self.mesh.start_engine()
            case "epoch":
                self.mesh.leave_epoch()
            case "model":
                self.mesh.exchange_the_model()

    def teardown(self) -> None:
        try:
            if hasattr(self, "mesh"):
                comes_to_its_end(self.mesh)
        finally:
            self.impatience.stop()


TestMeshMachine = MeshMachine.TestCase
TestMeshMachine.settings = settings(max_examples=settings().max_examples, stateful_step_count=100)


def comes_to_its_end(mesh: Mesh) -> None:
    """One healthy teacher is enough for what is left, and nothing was lost or repeated."""
    mesh.cluster = 0
    mesh.source_s = mesh.step_s = 0.01
    for name in list(mesh.teachers):
        mesh.hang(name)
    mesh.join("healthy", 0.1, window=2)
    mesh.yields = mesh.pulled - mesh.epoch_start + 5
    left = len(mesh.ready) + len(mesh.in_line) + 5
    seconds = 2 * TTL_S + 0.2 * left + 2.0  # 2 s: a slow step that has begun
    mesh.run(seconds)
    if mesh.in_line and not mesh.teachers["healthy"].answered:
        # It was asked for nothing but poison. Nobody can say that it is not the teacher's fault:
        # `no_teacher` decides how long the student waits. Teachers before it may have refused other
        # batches by mishap, which are poison now.
        lacking = {batch for batch in mesh.in_line if not mesh.is_whole(batch)}
        assert lacking - mesh.judged - mesh.poison <= mesh.venomous
        mesh.venomous.clear()
        mesh.run(seconds)
    assert mesh.source_is_empty
    assert (mesh.in_line, mesh.ready) == ([], []), "the stream stands still"
    assert mesh.ledger.volume_bytes == mesh.ledger.unlabelled == 0
    assert mesh.taken == sorted(set(mesh.taken))
    assert mesh.poisoned == sorted(set(mesh.poisoned))
    assert mesh.contents_taken == sorted(mesh.contents_taken), "models are mixed"
    assert sorted({*mesh.taken, *mesh.poisoned, *mesh.left_behind}) == list(range(mesh.pulled))
    assert len(mesh.taken) + len(mesh.poisoned) + len(mesh.left_behind) == mesh.pulled


@pytest.mark.parametrize(("cluster", "window", "upset"), [(1, 1, "engine"), (0, 2, "poison")])
def test_requests_that_straddle_batches_keep_to_the_read_ahead(
    cluster: int, window: int, upset: str
) -> None:
    machine = MeshMachine()
    machine.the_mesh_starts(0, upper=660, lower=0.0, step_s=0.01, source_s=0.0, cluster=cluster)
    machine.time_goes_by(0.01)
    machine.a_teacher_joins("a", seconds=0.02, w=window, most_rows=10)
    if upset == "engine":
        machine.all_starts_over("engine")
    else:
        machine.a_poison_batch_is_coming(0)
    machine.a_teacher_joins("b", seconds=0.02, w=1, most_rows=3)
    machine.time_goes_by(0.5)
    machine.teardown()


def test_poison_of_an_engine_before_counts_in_the_volume() -> None:
    machine = MeshMachine()
    machine.the_mesh_starts(0, upper=880, lower=0.0, step_s=1.0, source_s=0.0, cluster=1)
    machine.a_teacher_joins("b", seconds=0.2, w=2, most_rows=None)
    machine.time_goes_by(0.01)
    machine.time_goes_by(0.5)
    machine.all_starts_over("engine")
    machine.a_teacher_has_mishaps(0, ["refuse", "refuse"])
    machine.a_teacher_joins("c", seconds=0.02, w=1, most_rows=None)
    machine.a_teacher_changes_speed(1, factor=3.0)
    machine.time_goes_by(2.0)
    machine.a_teacher_changes_speed(0, factor=0.3)
    machine.a_teacher_joins("a", seconds=0.02, w=2, most_rows=None)
    machine.time_goes_by(0.1)
    assert len(machine.mesh.poison) == 2
    machine.all_starts_over("engine")
    machine.teardown()


WHOLE = BATCH_BYTES + LABEL_BYTES
ROOMY = FlowConfig(upper_bytes=20 * WHOLE, lower_bytes=10 * WHOLE)


def test_a_source_that_bursts_is_a_slow_source(rng: random.Random) -> None:
    mesh = Mesh(ROOMY, rng, step_s=0.1)
    mesh.join("only", 0.1, window=2)
    for _ in range(20):
        mesh.source_s = 0.0
        mesh.run(0.3)
        mesh.source_s = 4.0
        mesh.run(4.0)
    assert set(mesh.wants) == {1}


@settings(max_examples=max(4, settings().max_examples // 10))  # each is ten seconds of a mesh
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


@settings(max_examples=max(4, settings().max_examples // 10))
@given(seed=st.integers(0, 2**32 - 1), batches=st.floats(0.1, 6.0), upper=st.floats(0.01, 1.0))
def test_the_buffer_is_bounded_however_many_teachers_there_are(
    seed: int, batches: float, upper: float
) -> None:
    limit = int(batches * WHOLE)
    config = FlowConfig(max(int(upper * limit), 1), 0, buffer_bytes=limit)
    mesh = Mesh(config, random.Random(seed), step_s=0.01)
    for name in "abcdef":
        mesh.join(name, 0.1, window=8)
    while len(mesh.taken) < 40:
        mesh.step()
        held = mesh.ledger.volume_bytes + mesh.ledger.unlabelled * BATCH_BYTES
        # How large labels are is not known when the first batches are pulled.
        assert held <= max(limit, BATCH_BYTES) * WHOLE / BATCH_BYTES


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


#: Holds what the others label while the slowest works off its window: with less, the head of the
#: line is waited for, pulling pauses, and the fast ones get less than they could do.
DEEP = FlowConfig(upper_bytes=200 * WHOLE, lower_bytes=100 * WHOLE)


@pytest.mark.system  # seconds of CPU
def test_n_counts_teachers_of_the_average_speed(rng: random.Random) -> None:
    """0.4, 0.4 and 0.1 s are 15 batches a second: three teachers of 0.2 s."""
    mesh = Mesh(DEEP, rng, step_s=0.1)
    for name, seconds in (("a", 0.4), ("b", 0.4), ("fast", 0.1)):
        mesh.join(name, seconds)
    mesh.run(20.0)
    assert mesh.decision.needed == 2
    starved_s = mesh.memory.starved_s
    mesh.run(60.0)
    assert mesh.memory.starved_s == pytest.approx(starved_s, abs=0.5)

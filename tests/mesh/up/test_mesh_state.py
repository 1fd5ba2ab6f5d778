"""In which order a mesh starts and stops."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.mesh.up.mesh_state import (
    ATTEMPTS,
    BASE_S,
    CAP_S,
    HEALTHY_S,
    ROLES,
    MeshActions,
    MeshState,
    ProcessSpec,
    ProcessState,
    decide,
    ended,
    initial_state,
    ready,
    started,
    stop_requested,
)

RNG = random.Random(1)
COORDINATOR = ProcessSpec("c", "coordinator")
SMALL = (COORDINATOR, ProcessSpec("t", "teacher", "s"), ProcessSpec("u", "student"))


def after(mesh: MeshState, *names: str, now: float = 0.0) -> MeshState:
    for name in names:
        mesh = ready(started(mesh, name, now), name, now)
    return mesh


def end(mesh: MeshState, name: str, code: int, ran_s: float = 1.0, now: float = 0.0) -> MeshState:
    return ended(mesh, name, code, ran_s, now, RNG)


@dataclass
class World:
    """Processes that start, serve, die and leave as chance has it, and laws that hold meanwhile."""

    mesh: MeshState
    rng: random.Random
    #: Chances for one process at one moment.
    dies: float
    now: float = 0.0
    alive: dict[str, float] = field(default_factory=dict)  # -> when it was started
    told: set[str] = field(default_factory=set)

    def turn(self) -> None:
        self.now += self.rng.uniform(0.01, 3.0)
        for name in list(self.alive):
            if self.rng.random() < self.dies:
                self.end(name, self.rng.choice([-9, 0, 1, 2, 75]))
            elif name in self.told and self.rng.random() < 0.7:
                self.end(name, 0)
            elif self.rng.random() < 0.5:
                self.mesh = ready(self.mesh, name, self.now)
        before = self.mesh
        self.mesh, orders = decide(before, self.now)
        self.check(before, orders)
        for name in orders.start:
            self.alive[name] = self.now
            self.mesh = started(self.mesh, name, self.now)
        self.told.update(orders.terminate)
        for name in orders.kill:
            if name in self.alive and self.rng.random() < 0.8:  # a kill takes a moment
                self.end(name, -9)

    def end(self, name: str, code: int) -> None:
        ran_s = self.now - self.alive.pop(name)
        self.told.discard(name)
        self.mesh = ended(self.mesh, name, code, ran_s, self.now, self.rng)

    def check(self, before: MeshState, orders: MeshActions) -> None:
        runs = {one.spec.name for one in before.processes if one.phase == "running"}
        assert not set(orders.start) & set(self.alive), "two processes of one part"
        assert set(orders.terminate) | set(orders.kill) <= set(self.alive)
        for name in orders.start:
            one = before.of(name)
            assert not before.stopping
            assert self.now >= one.due_s
            self.stands_on(one, before, runs)
        rank = {one.spec.name: ROLES.index(one.spec.role) for one in before.processes}
        for name in orders.terminate:
            later = [other for other in self.alive if rank[other] > rank[name]]
            assert self.mesh.urgent or not later, "somebody still needs it"
        assert {one.spec.name for one in self.mesh.processes if one.alive} == set(self.alive)

    def stands_on(self, one: ProcessState, before: MeshState, runs: set[str]) -> None:
        assert one.spec.role == "coordinator" or "c" in runs
        if one.spec.role == "student":
            teachers = [teacher.spec for teacher in before.with_role("teacher")]
            serving = {teacher.group for teacher in teachers if teacher.name in runs}
            assert serving == {teacher.group for teacher in teachers}


@st.composite
def parts_of_a_mesh(draw: st.DrawFn) -> tuple[ProcessSpec, ...]:
    services, trains = draw(st.lists(st.sampled_from("ab"), max_size=3)), draw(st.booleans())
    teachers = [ProcessSpec(f"t{n}", "teacher", service) for n, service in enumerate(services)]
    numbers = range(draw(st.integers(0, 3)))
    students = [ProcessSpec(f"u{n}", "student", retries=n, is_edl=trains) for n in numbers]
    return (COORDINATOR, *teachers, *students)


class TestMeshStartup:
    def test_mesh_ends_in_reverse_order(self) -> None:
        leaves, orders = decide(stop_requested(after(initial_state(SMALL), "c", "t", "u")), 0.0)
        assert orders == MeshActions(terminate=("u",))
        assert decide(leaves, 1.0) == (leaves, MeshActions()), "nobody is told twice"
        mesh = leaves
        for name, following in (("u", ("t",)), ("t", ("c",)), ("c", ())):
            mesh, orders = decide(end(mesh, name, -15), 1.0)
            assert orders == MeshActions(terminate=following)
        assert mesh.over
        assert mesh.exit_code == 0, "nothing has failed"
        assert decide(leaves, SMALL[2].grace_s + 0.1)[1] == MeshActions(kill=("u",))
        mesh, orders = decide(stop_requested(leaves, urgent=True), 1.0)
        assert set(orders.kill) == {"c", "t", "u"}
        assert all(one.phase == "leaving" for one in mesh.processes)

    def test_failed_starts(self) -> None:
        mesh = started(initial_state(SMALL), "c", 0.0)
        assert decide(mesh, COORDINATOR.ready_s)[1] == MeshActions()
        assert decide(mesh, COORDINATOR.ready_s + 0.1)[1] == MeshActions(kill=("c",))
        mesh = end(started(after(initial_state(SMALL), "c"), "t", 0.0), "t", 2)
        assert mesh.of("t").phase == "failed"
        served = end(after(initial_state(SMALL), "c", "t"), "t", 2)
        for _ in range(2):
            assert served.of("t").phase == "due", "it had served with the same options"
            served = end(started(served, "t", 0.0), "t", 2)
        mesh = after(initial_state(SMALL), "c")
        for _ in range(ATTEMPTS):
            assert mesh.broken is None
            mesh = end(started(mesh, "t", 0.0), "t", 1)
        assert mesh.broken is not None
        mesh, orders = decide(mesh, 100.0)
        assert (mesh.stopping, orders.terminate) == (True, ("c",))
        assert end(mesh, "c", 0).over

    def test_serving_parts_are_restarted_forever(self) -> None:
        mesh, now = after(initial_state(SMALL), "c", "t", "u"), 0.0
        pauses = []
        for _ in range(40):
            mesh = end(mesh, "t", -9, ran_s=1.0, now=now)
            assert mesh.of("t").phase == "due"
            pauses.append(mesh.of("t").due_s - now)
            now = mesh.of("t").due_s
            assert decide(mesh, now)[1].start == ("t",)
            mesh = after(mesh, "t", now=now)
        assert pauses[0] == 0.0
        assert pauses[1] <= 2 * BASE_S
        assert 1.0 < max(pauses) <= CAP_S
        mesh = end(mesh, "t", -9, ran_s=HEALTHY_S, now=now)
        assert mesh.of("t").due_s == now, "one that ran for long is no sign of a lasting fault"

    def test_student_fails_after_its_retries(self) -> None:
        parts = (COORDINATOR, ProcessSpec("u", "student", retries=2), ProcessSpec("v", "student"))
        mesh = after(initial_state(parts), "c", "v")
        for _ in range(2):
            mesh = end(after(mesh, "u"), "u", 1)
            assert mesh.of("u").phase == "due"
        mesh = end(after(mesh, "u"), "u", 1)
        assert mesh.of("u").phase == "failed"
        assert not decide(mesh, 0.0)[0].stopping, "the other one goes on"
        mesh, orders = decide(end(mesh, "v", 0), 0.0)
        assert orders.terminate == ("c",)
        assert mesh.exit_code == 1

    def test_up_without_a_failed_student(self) -> None:
        more = (*SMALL, ProcessSpec("t2", "teacher", "s"), ProcessSpec("v", "student", retries=0))
        mesh = after(initial_state(more), "c", "t", "u", "v")
        mesh = end(mesh, "v", 2)
        assert mesh.of("v").phase == "failed"
        assert not mesh.up, "a teacher is still missing"
        assert after(mesh, "t2").up
        assert not end(started(mesh, "t2", 0.0), "t2", 2).up, "it is given up, and all with it"

    @pytest.mark.parametrize(("first", "second", "code"), [(7, 3, 7), (-9, 3, 1), (3, -9, 3)])
    def test_exit_code_of_the_first_failure(self, first: int, second: int, code: int) -> None:
        parts = (COORDINATOR, *(ProcessSpec(name, "student", retries=0) for name in "uvw"))
        mesh = end(after(initial_state(parts), "c", "u", "v", "w"), "w", 0)
        mesh = end(end(mesh, "v", first, now=1.0), "u", second, now=2.0)
        assert mesh.exit_code == code

    def test_kept_meshes_and_invalid_parts(self) -> None:
        mesh = end(after(initial_state(SMALL, keep=True), "c", "t", "u"), "u", 0)
        assert decide(mesh, 1.0) == (mesh, MeshActions())
        assert mesh.up
        mesh = after(initial_state(SMALL[:2]), "c", "t")
        assert decide(mesh, 1.0) == (mesh, MeshActions())
        for parts in ((COORDINATOR, COORDINATOR), (), SMALL[1:]):
            with pytest.raises(ValueError, match="one coordinator"):
                initial_state(parts)

    @given(
        parts_of_a_mesh(), st.integers(0, 1 << 30), st.sampled_from([0.0, 0.05, 0.4]), st.booleans()
    )
    def test_laws(self, parts: tuple[ProcessSpec, ...], seed: int, dies: float, keep: bool) -> None:
        rng = random.Random(seed)
        world = World(initial_state(parts, keep), rng, dies)
        for _ in range(rng.randrange(60)):
            world.turn()
        if dies == 0.0:
            for _ in range(60):
                world.turn()
            assert world.mesh.up, "nothing died, and not all of it is there"
        world.mesh = stop_requested(world.mesh, urgent=rng.random() < 0.2)
        for _ in range(200):
            if world.mesh.over:
                break
            world.turn()
        assert world.mesh.over
        assert not world.alive
        decided, orders = decide(world.mesh, world.now)
        assert decided.over
        assert orders == MeshActions()

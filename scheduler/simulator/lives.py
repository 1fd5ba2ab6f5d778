"""The teachers of a simulated mesh: they come, lease, slow down, fail, drain and go.

A teacher's lease runs out one TTL after its last beat; beats are not played one by one: when the
last one was follows from when it registered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from .. import assignment as rule
from .clock import Generator, lifetime_s
from .environment import Environment
from .leader import CONTENT
from .scenario import Ending, FaultKind, TeacherGroup
from .student import Student
from .teacher import Teacher, TeacherState

#: Beats of a lease in one TTL, as in the live mesh.
BEATS_PER_TTL: Final = 2.5


class Lives:
    """Carries out what happens to teachers.

    Args:
        env: of the run.
        students: those that are there; they notice at once when a teacher they are connected to is
            gone.
        hear: the coordinator's ear: a service, and what has happened there.

    Attributes:
        teachers: all that there are or were, by name.
        started, lost: how many of each group came, and were lost.
        draining: those that drain, by name.
    """

    def __init__(
        self,
        env: Environment,
        students: Sequence[Student],
        hear: Callable[[str, rule.AssignmentEvent], None],
    ) -> None:
        self.teachers: dict[str, Teacher] = {}
        self.started: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.draining: dict[str, Teacher] = {}
        self._env, self._scenario = env, env.scenario
        self._clock, self._trace = env.clock, env.trace
        self._students = students
        self._hear = hear
        groups = env.scenario.teachers
        self._rngs = {group.name: env.rng("lives", group.name) for group in groups}
        self._numbers: Counter[str] = Counter()
        self._usual_batch = {
            group.service: group.batch for group in reversed(env.scenario.students)
        }

    def begin(self) -> None:
        """Plan all that the groups say of themselves."""
        for group in self._scenario.teachers:
            for number in range(group.count):
                self.order(group, group.join_s + number * group.join_every_s)
            for change in group.changes:
                self._clock.at(change.at_s, partial(self._repace, group))

    # -- who there is

    def of(self, service: str) -> Iterator[Teacher]:
        """The teachers of a service, in the order in which they were ordered."""
        return (one for one in self.teachers.values() if one.group.service == service)

    def count(self, service: str, state: TeacherState) -> int:
        """How many of a service are so."""
        return sum(one.state == state for one in self.of(service))

    def believed(self, service: str) -> int:
        """How many serve as far as the registry knows: whose lease runs, and that do not drain."""
        return sum(one.leased and one.state != "draining" for one in self.of(service))

    def kept(self, service: str) -> list[Teacher]:
        """Whom a fleet has: a crash is seen at once, that one hangs when its lease is over."""
        return [
            one
            for one in self.of(service)
            if one.state in ("starting", "serving") or (one.state == "hung" and one.leased)
        ]

    def _becomes(self, teacher: Teacher, state: TeacherState) -> None:
        teacher.state = state
        if state == "draining":
            self.draining[teacher.name] = teacher
        else:
            self.draining.pop(teacher.name, None)

    # -- they come

    def order(self, group: TeacherGroup, in_s: float) -> None:
        """One more serves after so long."""
        number = self._numbers[group.name]
        self._numbers[group.name] += 1
        teacher = Teacher(self._env, group, number, self.rested)
        self.teachers[teacher.name] = teacher
        if in_s <= 0:
            self._serve(teacher)
        else:
            self._clock.after(in_s, partial(self._serve, teacher))

    def _serve(self, teacher: Teacher) -> None:
        if teacher.state != "starting":
            return  # it was called off
        now, group = self._clock.now, teacher.group
        self._becomes(teacher, "serving")
        teacher.served_from = now
        self.started[group.name] += 1
        self._trace.tell("serve", teacher.name)
        teacher.turned()
        self._register(teacher)
        if group.leave_per_minute:
            leaves_in_s = lifetime_s(self._rngs[group.name], group.leave_per_minute)
            self._clock.after(leaves_in_s, partial(self._leave, teacher))

    def _register(self, teacher: Teacher) -> None:
        teacher.leased = True
        teacher.life += 1
        teacher.registered_at = self._clock.now
        # The phase of its beats is chance, as processes start at any time.
        phase_s = self._rngs[teacher.group.name].random() * self._beat_s
        teacher.beats_from = self._clock.now - phase_s
        self._tell_speed(teacher)

    def _tell_speed(self, teacher: Teacher) -> None:
        group = teacher.group
        batch = self._usual_batch.get(group.service, 1)
        speed = group.lanes * batch / teacher.device_s(batch)
        up = rule.TeacherUp(teacher.name, 0, speed, CONTENT)
        self._hear(group.service, up)

    # -- they change

    def _repace(self, group: TeacherGroup) -> None:
        self._trace.tell("pace", group.name, f"{group.t_t_at(self._clock.now):g} s per sample")
        for teacher in list(self.teachers.values()):
            if teacher.group is group and teacher.works:
                self._paced(teacher)

    def slow(self, teacher: Teacher, factor: float) -> None:
        """Its work takes so many times as long from now on."""
        teacher.slowed *= factor
        self._trace.tell("slow", teacher.name, f"{teacher.slowed:g} times its usual time")
        self._paced(teacher)

    def _paced(self, teacher: Teacher) -> None:
        teacher.turned()

        def told() -> None:
            if teacher.leased and teacher.state == "serving":
                self._tell_speed(teacher)

        self._clock.at(self._next_beat(teacher), told)

    # -- they end

    def _leave(self, teacher: Teacher) -> None:
        if teacher.state == "serving":
            self.end(teacher, teacher.group.leaves_by)

    def end(self, teacher: Teacher, how: Ending, for_s: float | None = None) -> None:
        """It crashes, hangs (for so long; None: for good) or drains; another one may be ordered."""
        self._trace.tell(how, teacher.name)
        match how:
            case "crash":
                self._stop(teacher)
            case "hang":
                self._hang(teacher, for_s)
            case "drain":
                self.drain(teacher)
        group = teacher.group
        if group.back_after_s is not None and for_s is None:
            self._clock.after(group.back_after_s, partial(self.order, group, group.start_s))

    def _stop(self, teacher: Teacher) -> None:
        """Its process is over; whoever is connected notices at once, the registry later."""
        self._plan_expiry(teacher)
        self._becomes(teacher, "gone")
        self._gone(teacher)

    def _hang(self, teacher: Teacher, for_s: float | None) -> None:
        self._plan_expiry(teacher)
        self._becomes(teacher, "hung")
        teacher.turned()
        if for_s is not None:
            self._clock.after(for_s, partial(self._wake, teacher))

    def _wake(self, teacher: Teacher) -> None:
        if teacher.state != "hung":
            return
        self._becomes(teacher, "serving")
        if teacher.served_from is None:
            teacher.served_from = self._clock.now
        self._trace.tell("wake", teacher.name)
        teacher.turned()
        if teacher.leased:
            teacher.life += 1  # it beats again before its lease was over
        else:
            self._register(teacher)

    def _plan_expiry(self, teacher: Teacher) -> None:
        """Its lease runs out one TTL after its last beat."""
        if not teacher.leased:
            return
        last_beat = max(self._next_beat(teacher) - self._beat_s, teacher.registered_at)
        expiry = partial(self._expire, teacher, teacher.life)
        self._clock.at(last_beat + self._scenario.ttl_s, expiry)

    def _expire(self, teacher: Teacher, life: int) -> None:
        if not teacher.leased or teacher.life != life:
            return
        teacher.leased = False
        if teacher.state == "hung":
            self._part(teacher)
        self.lost[teacher.group.name] += 1
        self._trace.tell("lost", teacher.name, "its lease ran out")
        self._hear(teacher.group.service, rule.TeacherDown(teacher.name, lost=True))

    def drain(self, teacher: Teacher) -> None:
        """It takes nothing new, finishes, and leaves; `rested` follows. One that hangs is ended."""
        if teacher.state == "starting":
            self._becomes(teacher, "gone")
            return
        if teacher.state == "hung":
            self._stop(teacher)
            return
        if teacher.state != "serving":
            return
        self._becomes(teacher, "draining")
        self._hear(teacher.group.service, rule.TeacherDraining(teacher.name))
        teacher.turned()

    def _gone(self, teacher: Teacher) -> None:
        """Its process is over, and students that are connected notice at once."""
        self._part(teacher)
        teacher.turned()
        for student in self._students:
            student.reader.broke(teacher.name)

    def rested(self, teacher: Teacher) -> None:
        """It drains, and has nothing to do: it leaves as soon as nobody sends to it any more."""
        if teacher.state != "draining" or not (teacher.drain_heard and teacher.is_idle):
            return
        self._becomes(teacher, "gone")
        teacher.leased = False
        self._trace.tell("leave", teacher.name, "drained")
        self._gone(teacher)
        self._hear(teacher.group.service, rule.TeacherDown(teacher.name, lost=False))

    def strike(self, group: str, kind: FaultKind, count: int, rng: Generator) -> list[Teacher]:
        """Some of a group that serve, drawn for a fault."""
        there = [t for t in self.teachers.values() if t.group.name == group and t.works]
        if kind != "slow":
            there = [teacher for teacher in there if teacher.state == "serving"]
        rng.shuffle(there)
        return there[:count]

    # -- time

    def _part(self, teacher: Teacher) -> None:
        """It is not there any more, as far as costs go."""
        teacher.there_s, teacher.served_from = teacher.there_until_now_s, None

    @property
    def _beat_s(self) -> float:
        return self._scenario.ttl_s / BEATS_PER_TTL

    def _next_beat(self, teacher: Teacher) -> float:
        """When it beats next; a beat of this very moment has been."""
        beats = (self._clock.now - teacher.beats_from) // self._beat_s
        return teacher.beats_from + (beats + 1) * self._beat_s

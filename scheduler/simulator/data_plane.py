"""The data plane: every batch of every student, through the real rules of the live mesh."""

from __future__ import annotations

from collections.abc import Sequence

from .cast import Mesh, Report, Student, Tally, Teacher, Work
from .clock import Jitter
from .device import Device, Port
from .reader import Reader
from .scenario import Link
from .trainer import Ranks, Trainer


class DataPlane:
    """Follows each batch; everything is asked of it at the clock's `now`."""

    def begin(self, mesh: Mesh) -> None:
        """The run begins; nobody is there yet."""
        self._mesh = mesh
        self._devices: dict[str, Device] = {}
        self._trainers: dict[str, Trainer] = {}
        self._ranks: dict[str, Ranks] = {}

    # -- students

    def join(self, student: Student) -> None:
        """A student begins; it has no teacher yet."""
        mesh, name, group = self._mesh, student.name, student.group
        scenario, clock = mesh.scenario, mesh.clock
        ranks = self._ranks.setdefault(group.name, Ranks()) if group.together else None
        trainer = Trainer(
            student,
            clock,
            self._jitter(name, "step", group.jitter),
            mesh.trace,
            ranks,
            scenario.warm_up_s,
            self._done,
        )
        trainer.reader = Reader(
            student,
            clock,
            scenario,
            self._port(name, group.link),
            self._devices,
            mesh.seeding(f"{scenario.seed}/{name}/probes"),
            mesh.trace,
            trainer.deliver,
            lambda: mesh.news(student),
        )
        self._trainers[name] = trainer
        trainer.reader.begin()
        trainer.begin()

    def leave(self, student: Student) -> None:
        """A student is gone at this moment, done or not; nothing more is heard of it."""
        trainer = self._trainers[student.name]
        trainer.stop()
        trainer.reader.close()

    def _done(self, trainer: Trainer) -> None:
        trainer.reader.close()
        self._mesh.done(trainer.student)

    def assign(self, student: Student, teachers: Sequence[str], lost: Sequence[str]) -> None:
        """A student hears of its new set.

        Those missing from it and not in `lost` are revoked: they finish what they have for it.
        Those `lost` are dead as far as the coordinator knows: what they had goes to others.
        """
        self._trainers[student.name].reader.assign(teachers, lost)

    # -- teachers

    def turned(self, teacher: Teacher) -> None:
        """A teacher's `state` or speed is another one.

        "serving": it works (again). "draining": it works; `Mesh.rested` is called as soon as it has
        nothing more to do, at once if that is so. "hung": its device stands still with what it has.
        "gone": what it had is lost, and students that are connected notice at once.
        """
        device = self._devices.get(teacher.name)
        if device is None:
            device = self._devices[teacher.name] = Device(
                teacher,
                self._mesh.clock,
                self._port(teacher.name, teacher.group.link),
                self._jitter(teacher.name, "work", teacher.group.jitter),
                self._mesh.rested,
            )
        device.turned()
        if teacher.state == "gone":
            for trainer in self._trainers.values():
                if trainer.student.is_there:
                    trainer.reader.broke(teacher.name)

    def is_idle(self, teacher: Teacher) -> bool:
        """Whether a teacher has nothing to do, and nothing is on its way to it."""
        return self._devices[teacher.name].is_idle

    # -- what is told

    def report(self, student: Student) -> Report:
        """What a student that is there tells now."""
        return self._trainers[student.name].reader.report()

    def tally(self, student: Student) -> Tally:
        """What a student has done so far, also one that has left."""
        trainer = self._trainers.get(student.name)
        if trainer is None:
            return Tally(0, 0, 0.0, 0.0)
        reader = trainer.reader
        return Tally(
            trainer.batches,
            trainer.measured,
            trainer.last_s,
            trainer.training_s,
            reader.ledger.resends,
            reader.ledger.hedges,
            reader.most_volume / student.group.batch_bytes,
        )

    def waits(self, student: Student) -> tuple[float, float, float]:
        """Seconds that a student starved, was blocked, waited for its source, so far."""
        return self._trainers[student.name].reader.waited_s

    def work(self, teacher: Teacher) -> Work:
        """What a teacher has done so far, also one that is gone."""
        device = self._devices.get(teacher.name)
        return Work(0.0, 0.0) if device is None else Work(device.busy_s, device.batches)

    # -- what they are made of

    def _port(self, name: str, link: Link | None) -> Port:
        link = link or self._mesh.scenario.link
        return Port(link, self._jitter(name, "link", link.jitter))

    def _jitter(self, name: str, what: str, deviation: float) -> Jitter:
        generator = self._mesh.seeding(f"{self._mesh.scenario.seed}/{name}/{what}")
        return Jitter(generator, deviation)

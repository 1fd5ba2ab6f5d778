"""What was seen of a run, as values: what students were given, what was done, who was there.

Times are seconds since the run began. A student writes two files, which outlive whatever happens to
it: a record for each sample that came, and a line of figures now and then.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from ...proto.arena import Array
from .faults import Fault

#: What a student writes of each sample: when it came, its id, the digest of it and its labels.
RECORD = np.dtype([("at_s", "<f8"), ("id", "<u8"), ("digest", "<u8")])

#: A student tells of itself so often.
FIGURES_EVERY_S = 0.2
#: More than a line of figures has.
_TAIL_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class Figures:
    """What a student tells of itself at one moment.

    Attributes:
        at_s: when.
        teachers: names of those that its reader sends to, and believes.
        engine_pid: process id of its engine.
        volume_bytes: labelled batches that wait for it.
        resends: requests beyond the first of their batch, so far.
        waiting_for: in words, what the stream waits for.
        trainer_bytes: memory (PSS) of its own process; 0 where it was not measured this time.
        engine_bytes: the same of its engine's.
        ejected: names of the teachers that are out of its reader's pool, and why
            (`ReaderStats.ejected_for`).
        labelling: names of the teachers whose labels it used since they were assigned to it.
    """

    at_s: float
    teachers: tuple[str, ...]
    engine_pid: int
    volume_bytes: int = 0
    resends: int = 0
    waiting_for: str = ""
    trainer_bytes: int = 0
    engine_bytes: int = 0
    ejected: tuple[tuple[str, str], ...] = ()
    labelling: tuple[str, ...] = ()

    @property
    def liars(self) -> tuple[str, ...]:
        """Names of the teachers that its reader has found to lie, and does not ask."""
        return tuple(name for name, cause in self.ejected if cause == "lied")

    def to_line(self) -> str:
        """As it stands in the file."""
        return json.dumps(asdict(self)) + "\n"

    def later(self, seconds: float) -> Self:
        """The same by a clock that began so much earlier."""
        return replace(self, at_s=self.at_s + seconds)

    @classmethod
    def from_line(cls, line: str) -> Self:
        """Read a line of the file."""
        told: dict[str, Any] = json.loads(line)
        names = {key: tuple(told[key]) for key in ("teachers", "labelling")}
        return cls(**told | names | {"ejected": tuple(map(tuple, told["ejected"]))})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Who has a lease at one moment, as Redis says; empty where it does not answer.

    Attributes:
        at_s: when.
        teachers: live teachers.
        students: live students.
        assigned: by student, the teachers that the table names for it.
    """

    at_s: float
    teachers: frozenset[str] = frozenset()
    students: frozenset[str] = frozenset()
    assigned: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    """A fault as it was carried out.

    Attributes:
        fault: what the plan says.
        at_s: when it was done.
        healed_s: when it was taken away, or what it had killed was ready again; None: not yet when
            the run ended.
        skipped: why it was not done; empty when it was.
        effects: how many of what it strikes it has met (`Kind.meets`); None where it strikes a
            process, or is not over.
        trouble: what went wrong in doing it, in words; empty when nothing did.
    """

    fault: Fault
    at_s: float
    healed_s: float | None = None
    skipped: str = ""
    effects: int | None = None
    trouble: str = ""

    @property
    def in_vain(self) -> bool:
        """Whether there was nothing for it to strike."""
        return self.effects == 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of one student.

    Attributes:
        samples: its `RECORD`s, in the order in which it got them.
        figures: what it told of itself, in order.
        began_s: when it had its first sample.
        ended_s: until when it was meant to go on.
        trouble: how it ended, where that is not in order; else empty.
    """

    samples: Array
    figures: tuple[Figures, ...]
    began_s: float
    ended_s: float
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class TrainingSeen:
    """What came of the elastic training, and of a node with another seed that wanted to take part.

    Attributes:
        steps: that the training had done at the end.
        trouble: how it ended, where that is not in order; else empty.
        other_code: exit code of the other node.
        other_said: its last line.
    """

    steps: int
    trouble: str
    other_code: int
    other_said: str


@dataclass(frozen=True, slots=True)
class RunTrace:
    """What was seen of a whole run.

    Attributes:
        teachers: names of those that are always there.
        students: what was seen of each, by name.
        faults: what was done, in order.
        snapshots: who was there, in order.
        stalls: (from, to) when the machine gave this program itself no time.
        left: processes and shared memory that were left at the end, in words.
        load: the machine's greatest load average of a minute.
        training: what came of the elastic training; None: there was none.
        refusing: names of those that refuse every sample.
        misconfigured: names of those that must not label anything: the refusing ones, and one
            whose model is another one.
    """

    teachers: tuple[str, ...]
    students: Mapping[str, Seen]
    faults: tuple[Done, ...]
    snapshots: tuple[Snapshot, ...]
    stalls: tuple[tuple[float, float], ...] = ()
    left: tuple[str, ...] = ()
    load: float = 0.0
    training: TrainingSeen | None = None
    refusing: tuple[str, ...] = ()
    misconfigured: tuple[str, ...] = ()


def read_samples(path: Path) -> Array:
    """A student's records; what a kill has cut short at their end is left out."""
    data = path.read_bytes() if path.exists() else b""
    return np.frombuffer(data[: len(data) - len(data) % RECORD.itemsize], RECORD)


def read_figures(path: Path) -> tuple[Figures, ...]:
    """A student's figures; the last line only if it is whole."""
    text = path.read_text() if path.exists() else ""
    return tuple(map(Figures.from_line, text.splitlines()[: text.count("\n")]))


def latest_figures(path: Path) -> Figures | None:
    """The last whole line of a student's figures, however long the file is."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = file.read().split(b"\n")[:-1]
    return Figures.from_line(lines[-1].decode()) if lines else None

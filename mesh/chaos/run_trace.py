"""Trace of a chaos run: samples that students received, injected faults, and live members.

Times in a trace are seconds since the run began. Each student appends to files, which survive its
death: a record for every sample and for every call of its pool (`read_records`), and a line of
statistics several times a second (`read_stats`). Times in the files count from
`StudentConfig.began`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from ...proto.arena import Array
from ...proto.dataclass_json import from_plain
from .fault_plan import KIND_BY_NAME, Fault

#: Record of a sample: time of arrival, id, digest of the sample with its labels.
SAMPLE_RECORD = np.dtype([("at_s", "<f8"), ("id", "<u8"), ("digest", "<u8")])

#: Record of a call: time of its end, duration, first id and number of its samples, digest (0: an
#: error).
CALL_RECORD = np.dtype(
    [("at_s", "<f8"), ("took_s", "<f8"), ("id", "<u8"), ("rows", "<u8"), ("digest", "<u8")]
)

#: Seconds that a call may take.
CALL_TIMEOUT_S = 10.0
#: Interval of a student's statistics, in seconds.
STATS_INTERVAL_S = 0.2


@dataclass(frozen=True, slots=True)
class StudentStats:
    """Statistics of a student at one moment.

    Attributes:
        at_s: time of the statistics.
        teachers: teachers that its reader sends to, without those ejected for lying.
        engine_pid: process id of its engine.
        volume_bytes: bytes of labelled batches that wait for the student.
        waiting_for: what the stream waits for, as text.
        trainer_bytes: memory (PSS) of its own process; 0: not measured this time.
        engine_bytes: memory (PSS) of its engine; 0: not measured this time.
        ejected: (name, reason) of each ejected teacher, see `ReaderStats.ejected_for`.
        labelling: assigned teachers whose labels the student has used.
    """

    at_s: float
    teachers: tuple[str, ...]
    engine_pid: int
    volume_bytes: int = 0
    waiting_for: str = ""
    trainer_bytes: int = 0
    engine_bytes: int = 0
    ejected: tuple[tuple[str, str], ...] = ()
    labelling: tuple[str, ...] = ()

    @property
    def liars(self) -> tuple[str, ...]:
        """Teachers that its reader ejected for lying."""
        return tuple(name for name, reason in self.ejected if reason == "lied")

    def to_line(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Self:
        return from_plain(cls, json.loads(line))


@dataclass(frozen=True, slots=True)
class MembershipSnapshot:
    """Leases and assignments in Redis at one moment; empty if Redis did not answer.

    Attributes:
        at_s: time of the snapshot.
        teachers: teachers with a lease.
        students: students with a lease.
        assigned: assigned teachers by student.
    """

    at_s: float
    teachers: frozenset[str] = frozenset()
    students: frozenset[str] = frozenset()
    assigned: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """A planned fault, as it was carried out or skipped.

    Attributes:
        fault: the planned fault.
        at_s: start.
        healed_s: time when it was undone or skipped, or the killed process was ready again; None:
            not in this run.
        skipped: reason why it was not injected; empty: it was injected.
        effects: amount of affected traffic, in `FaultKind.effect_unit`; None: a fault of a process,
            skipped, or not healed yet.
        trouble: error while it was carried out; empty: none.
    """

    fault: Fault
    at_s: float
    healed_s: float | None = None
    skipped: str = ""
    effects: int | None = None
    trouble: str = ""

    @property
    def ends_s(self) -> float:
        """`healed_s`, or infinity."""
        return math.inf if self.healed_s is None else self.healed_s

    @property
    def without_effect(self) -> bool:
        """Whether the fault affected no traffic."""
        return self.effects == 0


@dataclass(frozen=True, slots=True)
class StudentTrace:
    """Trace of one student.

    Attributes:
        samples: records of dtype `SAMPLE_RECORD`, in the order of arrival.
        stats: statistics, in order of time.
        began_s: time when its first sample arrived.
        ended_s: time when it was sent SIGTERM.
        trouble: reason why it did not exit cleanly; empty: it exited cleanly.
        calls: records of dtype `CALL_RECORD` of its pool, in the order of the answers.
    """

    samples: Array
    stats: tuple[StudentStats, ...]
    began_s: float
    ended_s: float
    trouble: str = ""
    calls: Array = field(default_factory=lambda: np.empty(0, CALL_RECORD))


@dataclass(frozen=True, slots=True)
class ElasticTrainingResult:
    """Outcome of the elastic training, and of the node with another seed that tried to join it.

    Attributes:
        steps: number of steps trained.
        trouble: reason why the first node did not exit cleanly; empty: it exited cleanly.
        second_exit_code: exit code of the second node.
        second_output: last line of the second node's output.
    """

    steps: int
    trouble: str
    second_exit_code: int
    second_output: str


@dataclass(frozen=True, slots=True)
class RunTrace:
    """Trace of a whole run.

    Attributes:
        teachers: names of teachers that run from start to end.
        students: trace of each student, by name.
        faults: faults in the order in which they began.
        snapshots: leases and assignments, in order of time.
        stalls: (start, end) of each time in which the machine did not schedule this process.
        leftovers: processes and shared memory left behind, as text.
        max_load: greatest one-minute load average of the machine.
        training: outcome of the elastic training; None: there was none.
        refusing: names of teachers that refuse every sample.
        misconfigured: names of all teachers with labels that no student may use.
    """

    teachers: tuple[str, ...]
    students: Mapping[str, StudentTrace]
    faults: tuple[FaultRecord, ...]
    snapshots: tuple[MembershipSnapshot, ...]
    stalls: tuple[tuple[float, float], ...] = ()
    leftovers: tuple[str, ...] = ()
    max_load: float = 0.0
    training: ElasticTrainingResult | None = None
    refusing: tuple[str, ...] = ()
    misconfigured: tuple[str, ...] = ()

    @property
    def wrong_label_faults(self) -> list[FaultRecord]:
        """Injected faults that only a comparison with another teacher reveals."""
        return [
            one
            for one in self.faults
            if KIND_BY_NAME[one.fault.kind].needs_comparison and not one.skipped
        ]


def read_records(path: Path, record: np.dtype[Any]) -> Array:
    """Read a student's records, without an incomplete last one."""
    data = path.read_bytes() if path.exists() else b""
    return np.frombuffer(data[: len(data) - len(data) % record.itemsize], record)


def read_stats(path: Path) -> tuple[StudentStats, ...]:
    """Read a student's statistics, without an incomplete last line."""
    text = path.read_text() if path.exists() else ""
    return tuple(map(StudentStats.from_line, text.splitlines()[: text.count("\n")]))

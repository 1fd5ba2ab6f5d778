"""The reader's metrics, one entry each: what it is called, what it means, where its values are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

from ...scheduler.flow_values import State
from ...scheduler.outliers import IN_WORDS
from ..store.figures import Figures as StoreFigures
from .teacher_times import QUANTILES, TeacherTimes

if TYPE_CHECKING:
    from .member import Member

#: Values of the labels that a metric has besides `service` and `student`, and its value.
Sample = tuple[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is to tell of one member.

    Attributes:
        member: it.
        times: how its teachers have answered of late.
        weight: with which its labels are in the latest batch that was mixed; None: nothing is.
        upper_bytes: `ut`.
        lower_bytes: `lt`.
        now: by the engine's clock.
    """

    member: Member
    times: TeacherTimes
    weight: float | None
    upper_bytes: int
    lower_bytes: int
    now: float


@dataclass(frozen=True, slots=True)
class Family:
    """One metric, `edl_reader_NAME`.

    Attributes:
        kind: a "counter" gets `_total` behind its name.
        name: without what stands before and behind it.
        what: for people.
        samples: its values.
        labels: besides `service` and `student`.
    """

    kind: Literal["counter", "gauge"]
    name: str
    what: str
    samples: Callable[[Seen], Iterable[Sample]]
    labels: tuple[str, ...] = ()


def _one(value: Callable[[Member], float]) -> Callable[[Seen], Iterable[Sample]]:
    return lambda seen: [((), value(seen.member))]


def _counter(name: str, what: str, value: Callable[[Member], float]) -> Family:
    return Family("counter", name, what, _one(value))


def _gauge(name: str, what: str, value: Callable[[Member], float]) -> Family:
    return Family("gauge", name, what, _one(value))


def _stored(name: str, what: str, value: Callable[[StoreFigures], float]) -> Family:
    """A counter that is there where labels are kept."""

    def samples(seen: Seen) -> Iterator[Sample]:
        if seen.member.shelf is not None:
            yield (), value(seen.member.shelf.figures)

    return Family("counter", f"store_{name}", what, samples)


def _by_teacher(name: str, what: str, value: Callable[[Seen, str], float]) -> Family:
    """One value for each teacher that the reader sends to now: series go with their teachers."""
    return Family(
        "gauge",
        f"teacher_{name}",
        what,
        lambda seen: [((one,), value(seen, one)) for one in seen.member.ledger.teachers],
        ("teacher",),
    )


def _store_bytes(seen: Seen) -> Iterator[Sample]:
    if seen.member.shelf is not None:
        yield (), seen.member.shelf.disk_bytes


def _weight(seen: Seen) -> Iterator[Sample]:
    if seen.weight is not None:
        yield (), seen.weight


def _ejections(seen: Seen) -> Iterator[Sample]:
    counted = seen.member.core.teachers.breakers.ejections
    return (((cause,), counted[cause]) for cause in IN_WORDS)


def _states(seen: Seen) -> Iterator[Sample]:
    state = seen.member.core.decision.state
    return (((name,), name == state) for name in get_args(State))


def _turnarounds(seen: Seen) -> Iterator[Sample]:
    for teacher in seen.member.ledger.teachers:
        for q in QUANTILES:
            if (value := seen.times.quantile_s(teacher, q)) is not None:
                yield (teacher, f"{q:g}"), value


#: What waits for whom, and how the stream goes.
_STREAM: Final = (
    _counter(
        "batches_delivered",
        "Batches that the training loop has taken.",
        lambda m: m.core.figures.batches_taken,
    ),
    _counter(
        "samples_delivered",
        "Rows of those batches.",
        lambda m: m.core.figures.samples_taken,
    ),
    Family(
        "gauge",
        "samples_per_second",
        "Rows taken, over the last seconds.",
        lambda seen: [((), seen.member.core.figures.samples_per_s(seen.now))],
    ),
    _counter(
        "starved_seconds",
        "Time that the training loop waited for labels.",
        lambda m: m.core.memory.starved_s,
    ),
    _counter(
        "blocked_seconds",
        "Time that pulling was paused because the buffer was full.",
        lambda m: m.core.memory.blocked_s,
    ),
    _counter(
        "source_wait_seconds",
        "Time that the training loop waited for the source of batches.",
        lambda m: m.core.memory.source_wait_s,
    ),
    Family("gauge", "state", "1 for what the reader is doing, else 0.", _states, ("state",)),
    _gauge(
        "volume_bytes",
        "Bytes of batches that are labelled and not yet consumed.",
        lambda m: m.ledger.volume_bytes,
    ),
    Family(
        "gauge",
        "threshold_bytes",
        "Thresholds of the volume: pulling pauses above ut and goes on below lt.",
        lambda seen: [(("ut",), seen.upper_bytes), (("lt",), seen.lower_bytes)],
        ("threshold",),
    ),
    _gauge(
        "label_bytes",
        "Bytes of labels that have come and wait for those of an earlier batch.",
        lambda m: m.labels.nbytes,
    ),
    _gauge(
        "data_epoch",
        "Epochs of the data that were begun.",
        lambda m: m.core.contents.switch.data_epoch,
    ),
)

#: What became of batches.
_BATCHES: Final = (
    _counter(
        "forgone_batches",
        "Batches that went without labels of the service, as it had no teacher.",
        lambda m: m.forgone,
    ),
    _counter(
        "poison_batches",
        "Batches that three teachers refused which label others, or all such if fewer.",
        lambda m: m.poisoned,
    ),
    _counter(
        "relabelled_batches",
        "Batches whose labels were thrown away: of another model, or of a teacher that lied.",
        lambda m: m.relabelled,
    ),
    Family(
        "gauge",
        "ensemble_weight",
        "With which the labels of the service are in the latest batch; 0: they are missing.",
        _weight,
    ),
)

#: Requests and teachers, all together.
_TEACHERS: Final = (
    _gauge("want", "Teachers asked for.", lambda m: m.core.decision.want),
    _gauge(
        "needed",
        "n = ceil(t_t / t_s); 0 while a time is not known.",
        lambda m: m.core.decision.needed,
    ),
    _gauge(
        "teacher_seconds_per_sample",
        "t_t: the speeds of its teachers, averaged; 0 while it is not known.",
        lambda m: m.core.figures.t_t_s or 0.0,
    ),
    _gauge(
        "student_seconds_per_sample",
        "t_s: the training step, unhindered; 0 while it is not known.",
        lambda m: m.core.figures.t_s_s or 0.0,
    ),
    Family(
        "gauge",
        "teachers",
        "Teachers of this reader, by state.",
        lambda seen: [
            ((state,), n) for state, n in seen.member.core.teachers.links.states().items()
        ],
        ("state",),
    ),
    _gauge(
        "stragglers",
        "Teachers that are much slower than the others, or say nothing.",
        lambda m: len(m.core.teachers.lateness.stragglers),
    ),
    _gauge("requests_in_flight", "Requests under way at teachers.", lambda m: m.ledger.in_flight),
    _counter("resends", "Requests beyond the first of their rows.", lambda m: m.ledger.resends),
    _counter(
        "hedges",
        "Requests that were asked of a second teacher, as the first was late.",
        lambda m: m.ledger.hedges,
    ),
    _counter(
        "canaries",
        "Requests that were asked of a second teacher, to compare what both say.",
        lambda m: m.ledger.probes,
    ),
    _counter(
        "discards",
        "Answers that came late, twice, or from a model that was exchanged.",
        lambda m: m.labels.discards,
    ),
    Family(
        "counter",
        "ejections",
        "Times that a teacher was put out of the pool, to be probed later.",
        _ejections,
        ("cause",),
    ),
    _counter(
        "readmissions",
        "Times that an ejected teacher was let in again.",
        lambda m: m.core.teachers.breakers.readmissions,
    ),
)

#: Of each teacher.
_EACH_TEACHER: Final = (
    _by_teacher(
        "samples_per_second",
        "Rows that the teacher labels, over the last seconds.",
        lambda seen, teacher: seen.times.samples_per_s(teacher, seen.now),
    ),
    _by_teacher(
        "requests_in_flight",
        "Requests under way at the teacher.",
        lambda seen, teacher: len(seen.member.ledger.in_flight_at(teacher)),
    ),
    _by_teacher(
        "window",
        "Requests that the teacher may have under way.",
        lambda seen, teacher: seen.member.core.pace.window(teacher),
    ),
    Family(
        "gauge",
        "teacher_turnaround_seconds",
        "Time from asking the teacher to having its labels: quantiles of its latest answers.",
        _turnarounds,
        ("teacher", "quantile"),
    ),
)

#: Where labels are kept.
_STORE: Final = (
    _stored("hits", "Samples whose labels were in the store.", lambda f: f.hits),
    _stored("misses", "Samples whose labels were not.", lambda f: f.misses),
    _stored("written", "Samples whose labels were put into it.", lambda f: f.written),
    _stored("evicted", "Samples whose labels made room.", lambda f: f.evicted),
    _stored("damaged", "Samples whose labels failed their checksum.", lambda f: f.damaged),
    _stored("dropped", "Samples whose labels could not be put into it.", lambda f: f.dropped),
    Family("gauge", "store_bytes", "Bytes of the store on the disk.", _store_bytes),
)

FAMILIES: Final = (*_STREAM, *_BATCHES, *_TEACHERS, *_EACH_TEACHER, *_STORE)

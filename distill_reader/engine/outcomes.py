"""What the engine and its links say to each other: who is asked what, and what came of it.

What is made anew for every batch is a named tuple, which takes a third of the time of a frozen
dataclass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from ...errors import EdlError
from ...proto.arena import Array
from ...proto.lent_arena import Lent
from ...proto.stacked import Input
from ...scheduler.ledger.instructions import Span
from ..label_forms import AS_GIVEN, LabelForms
from ..store.rows import Row

_NOWHERE: Final[Mapping[str, Lent]] = MappingProxyType({})


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a teacher is; what is not known of one that was only named by address is empty."""

    teacher_id: str
    address: str
    model: str
    incarnation: int = 0
    content_id: str = ""
    protocol: str = ""  # as the registry names it; empty: `oip`
    inputs: tuple[str, ...] = ()  # of its model, where its server cannot be asked
    foreign: bool = False  # somebody vouches for it: it is no server of ours
    numerics_id: str = ""


class Job(NamedTuple):
    """One request: rows of batches for a teacher.

    Attributes:
        request: its number, as the ledger counts.
        spans: the rows, in the order in which they are sent.
        inputs: of the model.
        fetches: outputs that are wanted; empty: all.
        samples: rows of the inputs and of each output.
        forms: in which form each output is wanted.
        asked_at: when that was decided, by the monotonic clock.
        lent: where those inputs lie that need not be sent, as far as that is known already.
        is_current: whether the memory of the inputs is still that of these rows.
        student: who asks: "JOB/RANK".
    """

    request: int
    spans: tuple[Span, ...]
    inputs: Mapping[str, Input]
    fetches: tuple[str, ...]
    samples: int
    forms: LabelForms = AS_GIVEN
    asked_at: float = 0.0
    lent: Mapping[str, Lent] = _NOWHERE
    is_current: Callable[[], bool] = _always
    student: str = ""

    @property
    def name(self) -> str:
        """By which teachers and logs know the request."""
        return f"{self.student}#{self.request}"

    def about(self, teacher: str) -> dict[str, object]:
        """What log records of it say, by `logs.KEYS`."""
        numbers = sorted({span.batch for span in self.spans})
        return {"teacher": teacher, "request": self.name, "batches": numbers}

    @property
    def rows(self) -> int:
        """How many rows of batches it has; `samples` where these can be cut."""
        return sum([stop - start for _, start, stop in self.spans])


@dataclass(frozen=True, slots=True)
class Ready:
    """The teacher answers; `inputs` are the names of its model's inputs."""

    inputs: tuple[str, ...]


class Done(NamedTuple):
    """Labels that passed their checks, by output; their memory is that of the answer.

    Attributes:
        job: what was asked.
        labels: as the training loop gets them.
        device_s: of the teacher's device.
        draining: the teacher is to get nothing more.
        seconds: since it was asked.
        content_id: of the model, as far as it is known.
        numerics_id: what makes the bits of the labels, the same.
        rows: as a label store keeps them; none where there is no store.
    """

    job: Job
    labels: Mapping[str, Array]
    device_s: float
    draining: bool
    seconds: float
    content_id: str = ""
    numerics_id: str = ""
    rows: Sequence[Row] = ()

    @property
    def row_nbytes(self) -> int:
        """Bytes of the labels of one row."""
        nbytes = sum([label.nbytes for label in self.labels.values()])
        return -(-nbytes // self.job.rows)


@dataclass(frozen=True, slots=True)
class Broke:
    """A request, or the connection when `job` is None, came to nothing."""

    job: Job | None
    error: EdlError


Outcome = Ready | Done | Broke

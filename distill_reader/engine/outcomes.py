"""What the engine and its links say to each other: who is asked what, and what came of it.

What is made anew for every batch is a named tuple, which takes a third of the time of a frozen
dataclass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from ... import errors
from ...errors import EdlError
from ...proto.arena import Array
from ...proto.datatypes import Input
from ...proto.shared_buffer import Lent
from ...scheduler.ledger.instructions import Span
from ...scheduler.reader_core.events import Failure
from ..label_forms import AS_GIVEN, LabelForms
from ..store.rows import Row

_NOWHERE: Final[Mapping[str, Lent]] = MappingProxyType({})


def _always() -> bool:
    return True


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
        rows = 0
        for _, start, stop in self.spans:
            rows += stop - start
        return rows


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


@dataclass(frozen=True, slots=True)
class Broke:
    """A request, or the connection when `job` is None, came to nothing."""

    job: Job | None
    error: EdlError


Outcome = Ready | Done | Broke


def failure_of(error: EdlError) -> Failure:
    """What a request or a probe came to, for the core."""
    match error:
        case errors.InputsOverwritten():
            return "overwritten"
        case errors.RequestRefused() | errors.VersionMismatch():
            return "refused"
        case errors.BadAnswer():
            return "bad answer"
        case errors.RateLimited():
            return "full"
        case errors.AccessError():
            return "shut out"
        case errors.PredictorCrashed():
            return "crashed"
        case errors.RetryableError():
            return "failed"
        case _:
            return "lost"

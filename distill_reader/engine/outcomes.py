"""Requests to teachers, and their outcomes, as exchanged between the engine and its links.

Classes made for every batch are named tuples: those take a third of a frozen dataclass's time.
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
from ...proto.shared_buffer import BufferLocation
from ...scheduler.ledger.events import Span
from ...scheduler.reader_core.events import FailureCause
from ..label_forms import AS_GIVEN, LabelForms
from ..store.rows import Row

_NOWHERE: Final[Mapping[str, BufferLocation]] = MappingProxyType({})


def _always() -> bool:
    return True


class TeacherRequest(NamedTuple):
    """Rows of batches for a teacher to label.

    Attributes:
        request: its number in the ledger.
        spans: the rows, in the order of sending.
        inputs: of the model.
        fetches: requested outputs; empty: all.
        samples: rows of the inputs and of each output.
        forms: the requested form of each output.
        asked_at: when the core decided it, by the monotonic clock.
        locations: location of inputs in shared memory, as far as known.
        is_current: whether the memory of the inputs is still that of these rows.
        student: "JOB/RANK".
    """

    request: int
    spans: tuple[Span, ...]
    inputs: Mapping[str, Input]
    fetches: tuple[str, ...]
    samples: int
    forms: LabelForms = AS_GIVEN
    asked_at: float = 0.0
    locations: Mapping[str, BufferLocation] = _NOWHERE
    is_current: Callable[[], bool] = _always
    student: str = ""

    @property
    def name(self) -> str:
        """The request's id for teachers and logs."""
        return f"{self.student}#{self.request}"

    def about(self, teacher: str) -> dict[str, object]:
        """Fields for log records, by `logs.KEYS`."""
        numbers = sorted({span.batch for span in self.spans})
        return {"teacher": teacher, "request": self.name, "batches": numbers}

    @property
    def rows(self) -> int:
        """Rows of batches; equals `samples` if the batches can be cut."""
        rows = 0
        for _, start, stop in self.spans:
            rows += stop - start
        return rows


@dataclass(frozen=True, slots=True)
class TeacherReady:
    """The teacher serves; `inputs` are the names of its model's inputs."""

    inputs: tuple[str, ...]


class RequestDone(NamedTuple):
    """Checked labels by output, in the memory of the answer.

    Attributes:
        job: the request.
        labels: as the training loop gets them.
        device_s: time of the teacher's device.
        draining: the teacher accepts no more requests.
        seconds: since the request was sent.
        content_id: of the model; empty: unknown.
        numerics_id: what determines the bits of the labels; empty: unknown.
        rows: for the label store; none without a store.
    """

    job: TeacherRequest
    labels: Mapping[str, Array]
    device_s: float
    draining: bool
    seconds: float
    content_id: str = ""
    numerics_id: str = ""
    rows: Sequence[Row] = ()


@dataclass(frozen=True, slots=True)
class LinkFailure:
    """A request failed, or the connection if `job` is None."""

    job: TeacherRequest | None
    error: EdlError


Outcome = TeacherReady | RequestDone | LinkFailure


def failure_of(error: EdlError) -> FailureCause:
    """The class of an error, for the core."""
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

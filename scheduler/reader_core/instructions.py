"""Instructions of `ReaderCore` and `Delivery` to their driver, which carries them out in order.

Some are instructions of the ledger, which the core passes on: `Accept`, `Discard`, `BatchLabelled`,
`GoesUnlabelled`, `LabelsRevoked`, `Poison` and `LookUp`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..ledger.events import Accept as Accept
from ..ledger.events import BatchLabelled as BatchLabelled
from ..ledger.events import Discard as Discard
from ..ledger.events import GoesUnlabelled as GoesUnlabelled
from ..ledger.events import LabelsRevoked as LabelsRevoked
from ..ledger.events import LookUp as LookUp
from ..ledger.events import Poison as Poison
from ..ledger.events import Send, Span
from ..no_teacher import Mixture
from .events import DeliverUnlabelled, InvalidateBatch, LoopWaiting, Peer, Released

LogLevel = Literal["info", "warning"]


class SendRequest(NamedTuple):
    """Send rows to a teacher as one request.

    Attributes:
        link: number of the connection.
        send: the rows and the teacher.
        in_own_memory: copy the rows first, because the student may consume the batches before the
            teacher has read them.
    """

    link: int
    send: Send
    in_own_memory: bool

    @property
    def spans(self) -> tuple[Span, ...]:
        return self.send.spans


class OpenConnection(NamedTuple):
    """Prepare a connection to a teacher; a `Probe` over it follows later."""

    link: int
    peer: Peer


class CloseConnection(NamedTuple):
    """Close a connection; the core ignores events that still arrive over it."""

    link: int


class Probe(NamedTuple):
    """Ask a teacher once whether it serves, and which model; answer `Probed` or `ProbeFailed`."""

    link: int
    teacher: str


class TryPaths(NamedTuple):
    """Connect to the machines of these teachers, send nothing, and answer `PathsTried`.

    Attributes:
        peers: the teachers.
        began_at: the core's time of the attempts; `PathsTried` repeats it.
    """

    peers: tuple[Peer, ...]
    began_at: float


class KeepAnswer(NamedTuple):
    """Keep the labels of this answer, which just arrived, for comparisons."""

    request: int
    teacher: str


class DropAnswers(NamedTuple):
    """Drop the kept answers to this request."""

    request: int


class DropAllAnswers(NamedTuple):
    """Drop all kept answers."""


class Disputed(NamedTuple):
    """Tell the user that teachers contradict each other and no other one can decide.

    Attributes:
        request: the request with the kept answers.
        teachers: those that contradict each other, sorted by name.
        pair: the first two of them with labels that differ.
    """

    request: int
    teachers: tuple[str, ...]
    pair: tuple[str, str]


class DropCachedLabels(NamedTuple):
    """Remove all labels of this teacher from the label store."""

    teacher: str


class DropLabels(NamedTuple):
    """Drop all labels that were not offered to the trainer; later labels are of this content."""

    content_id: str


class ReportNow(NamedTuple):
    """Report to the coordinator now, without waiting for the next regular time."""


class EpochDue(NamedTuple):
    """Tell the trainer that teachers of another content wait for its next epoch."""


class RefuseSettings(NamedTuple):
    """The reader's settings fit none of the models: raise an error."""

    reason: str


@dataclass(frozen=True, slots=True)
class LogMessage:
    level: LogLevel
    text: str
    teacher: str = ""


#: A batch has all its labels, is delivered without labels, must be labelled again, or is replaced
#: by an error.
LabelChange = BatchLabelled | GoesUnlabelled | LabelsRevoked | Poison
Instruction = (
    LabelChange
    | SendRequest
    | Accept
    | Discard
    | OpenConnection
    | CloseConnection
    | Probe
    | TryPaths
    | KeepAnswer
    | DropAnswers
    | DropAllAnswers
    | Disputed
    | DropCachedLabels
    | DropLabels
    | ReportNow
    | EpochDue
    | RefuseSettings
    | LogMessage
    | LookUp
)


# ------------------------------------------------- instructions of `Delivery`, for the stream


class ForwardEvent(NamedTuple):
    """Pass an event to the core of a service."""

    service: str
    event: Released | DeliverUnlabelled | InvalidateBatch | LoopWaiting


class OfferBatch(NamedTuple):
    """Give the trainer a batch's labels; the training loop gets them once the batch is released.

    Attributes:
        batch: its number.
        mixture: services of the labels, and their shares; None: the batch has no labels.
    """

    batch: int
    mixture: Mixture | None


@dataclass(frozen=True, slots=True)
class OfferPoison:
    """Tell the trainer that a batch will never be labelled: an error takes its place."""

    batch: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Make the trainer forget the offer of a batch."""

    batch: int


class Release(NamedTuple):
    """The training loop may take these batches, in this order."""

    batches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DropBatch:
    """Drop all labels of a poison batch, of all services."""

    batch: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Raise an error: the student has waited without a teacher for longer than the user allows."""


StreamInstruction = (
    ForwardEvent | OfferBatch | Release | OfferPoison | Withdraw | DropBatch | GiveUp | LogMessage
)

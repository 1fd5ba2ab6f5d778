"""What the reader core has its driver do, in this order: `ReaderCore`, and `Delivery`.

The ledger's `Accept`, `Discard`, `BatchLabelled`, `GoesUnlabelled`, `LabelsRevoked`, `Poison` and
`LookUp` are among them.
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
        send: which rows, to whom.
        in_own_memory: the batches may be consumed before the teacher has read their rows.
    """

    link: int
    send: Send
    in_own_memory: bool

    @property
    def spans(self) -> tuple[Span, ...]:
        """Which rows."""
        return self.send.spans


class OpenConnection(NamedTuple):
    """There is a teacher to connect to; it is probed when `Probe` says so."""

    link: int
    peer: Peer


class CloseConnection(NamedTuple):
    """End a connection; what is still heard over it counts no more."""

    link: int


class Probe(NamedTuple):
    """Ask a teacher once whether it serves, and which model; answer `Probed` or `ProbeFailed`."""

    link: int
    teacher: str


class TryPaths(NamedTuple):
    """Connect to the machines of these teachers, send nothing, and answer `PathsTried`."""

    peers: tuple[Peer, ...]
    began_at: float


class KeepAnswer(NamedTuple):
    """Keep the labels of this answer, which came just now, to compare others with."""

    request: int
    teacher: str


class DropAnswers(NamedTuple):
    """The answers to this request that were kept are compared."""

    request: int


class DropAllAnswers(NamedTuple):
    """No answer that was kept is compared any more."""


class Disputed(NamedTuple):
    """Teachers contradict each other about a request, and nobody can tell who is wrong."""

    request: int
    teachers: tuple[str, ...]

    @property
    def pair(self) -> tuple[str, str]:
        """The first two of them."""
        return self.teachers[0], self.teachers[1]


class DropCachedLabels(NamedTuple):
    """Keep nothing in a label store that this teacher has labelled: it is not believed."""

    teacher: str


class DropLabels(NamedTuple):
    """Labels of batches that are not released are void; those to come are of this content."""

    content_id: str


class ReportNow(NamedTuple):
    """The coordinator should hear of the reader now, not at its next turn."""


class RefuseSettings(NamedTuple):
    """The reader's settings are for none of the models; it cannot go on."""

    reason: str


@dataclass(frozen=True, slots=True)
class LogMessage:
    """Something that people may want to know, for a log."""

    level: LogLevel
    text: str
    teacher: str = ""


Instruction = (
    SendRequest
    | Accept
    | Discard
    | BatchLabelled
    | GoesUnlabelled
    | LabelsRevoked
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
    | RefuseSettings
    | LogMessage
    | Poison
    | LookUp
)


# ------------------------------------------------------------------- of a stream: `Delivery`


class ForwardEvent(NamedTuple):
    """Have the core of a service hear of something."""

    service: str
    event: Released | DeliverUnlabelled | InvalidateBatch | LoopWaiting


class OfferBatch(NamedTuple):
    """Give the trainer a batch's labels, which the training loop gets once it is released.

    Attributes:
        batch: its number.
        mixture: whose labels, in which shares; None: the batch goes without any.
    """

    batch: int
    mixture: Mixture | None


@dataclass(frozen=True, slots=True)
class OfferPoison:
    """Tell the trainer that a batch will never be labelled: its turn is an error."""

    batch: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The trainer is to forget what it was offered of a batch."""

    batch: int


class Release(NamedTuple):
    """The training loop may take these batches, in this order."""

    batches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DropBatch:
    """The labels that there are of a batch are void, of all services: it is poison."""

    batch: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """There has been no teacher for as long as the user is willing to wait: raise that."""


StreamInstruction = (
    ForwardEvent | OfferBatch | Release | OfferPoison | Withdraw | DropBatch | GiveUp | LogMessage
)

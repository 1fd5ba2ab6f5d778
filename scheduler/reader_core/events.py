"""Events of the reader core: about the stream, teachers, and time.

The driver (live engine or simulator) turns I/O into events and carries out the returned
instructions; it keeps no state that affects decisions. It reports the outcome of a request or probe
with the number of the connection, so the core can ignore outcomes over a closed connection.

The ledger's events `Queued`, `StoreSearched`, `BatchRestored`, `Released`, `InvalidateBatch`,
`DeliverUnlabelled` and `Cancelled` are used as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ..ledger.events import BatchRestored as BatchRestored
from ..ledger.events import Cancelled as Cancelled
from ..ledger.events import DeliverUnlabelled as DeliverUnlabelled
from ..ledger.events import InvalidateBatch as InvalidateBatch
from ..ledger.events import Queued as Queued
from ..ledger.events import Released as Released
from ..ledger.events import StoreSearched as StoreSearched
from ..stream_stats import StreamProfile

#: How a request or a probe failed:
#:
#: * "overwritten": the inputs were overwritten before the teacher had read them.
#: * "refused": the teacher will never answer this request.
#: * "full": the teacher has no room for a request now.
#: * "shut out": the teacher rejects the reader's credentials.
#: * "crashed": the request crashed a predictor, or a resource was missing for it alone.
#: * "failed": another failure that a retry may solve; the connection holds.
#: * "bad answer": the answer fails its checks, or does not fit other labels of the batch.
#: * "lost": the connection broke or is no longer usable, or no answer came in time.
FailureCause = Literal[
    "overwritten", "refused", "full", "shut out", "crashed", "failed", "bad answer", "lost"
]


@dataclass(frozen=True, slots=True)
class Peer:
    """The address of a teacher, and its registered facts; these are empty if it is unregistered."""

    teacher_id: str
    address: str
    model: str
    incarnation: int = 0
    content_id: str = ""
    protocol: str = ""  # as the registry names it; empty: `oip`
    inputs: tuple[str, ...] = ()  # names, registered for a foreign server that does not state them
    foreign: bool = False  # a server of another project, registered by a sidecar
    numerics_id: str = ""

    def __hash__(self) -> int:
        return hash(self.teacher_id)


@dataclass(frozen=True, slots=True)
class Advice:
    """The contents (model files, preprocessing) that an assignment names.

    Attributes:
        content_id: content of all its teachers; empty: there are no teachers, or it is unknown.
        next_content_id: content that the student moves to at its next epoch; empty: it stays.
        data_epoch: the student's epoch that the assignment was made for.
    """

    content_id: str = ""
    next_content_id: str = ""
    data_epoch: int = 0


@dataclass(frozen=True, slots=True)
class Assigned:
    """The teachers that this reader may use from now on.

    Attributes:
        peers: all these teachers; a missing one is revoked, unless it is in `lost`.
        lost: ids of teachers that are known to be dead.
        live: number of live teachers of the service, without draining ones.
        epoch: version (term, counter) of the assignment; (0, 0) without a coordinator.
        advice: contents that belong to the assignment.
        barred: ids of peers that must not get requests, because their numerics do not fit this
            deterministic stream (see `model_switch`); set by the core.
    """

    peers: tuple[Peer, ...]
    lost: frozenset[str] = frozenset()
    live: int = 0
    epoch: tuple[int, int] = (0, 0)
    advice: Advice = field(default_factory=Advice)
    barred: frozenset[str] = frozenset()


class PublishedKind(NamedTuple):
    """The kind of numbers that a teacher publishes for one output.

    Attributes:
        output: name of the output.
        kind: "logits", "probabilities", "log-probabilities" or "other".
        unconverted: the teacher sends these numbers themselves as labels. False: it converts every
            kind to the same labels, so teachers of another content may publish another kind.
    """

    output: str
    kind: str
    unconverted: bool = True


@dataclass(frozen=True, slots=True)
class HandoffState:
    """State that a core hands to its successor when the engine restarts.

    Attributes:
        content_id: as reported to the coordinator; empty: unknown, or the student waited to be
            moved.
        bound: the epoch keeps that content.
        assigned: the assignment that the core followed; while the student waited to be moved, the
            latest one. Its `lost` and `barred` are empty: the successor never had the lost
            teachers, and finds the barred ones itself.
        numerics_id: numerics that the stream's labels are pinned to; empty: none.
        kinds: how the stream's labels are interpreted; empty: it has no labels yet.
    """

    content_id: str = ""
    bound: bool = False
    assigned: Assigned = field(default_factory=lambda: Assigned(()))
    numerics_id: str = ""
    kinds: tuple[PublishedKind, ...] = ()


# ---------------------------------------------------------------------- events: the stream


class Pulled(NamedTuple):
    """The source yielded a batch of `samples` with `rows` separable rows, in `source_s` seconds."""

    source_s: float
    samples: int
    rows: int


class Called(NamedTuple):
    """A call outside the training loop asks for the labels of `samples`, in `rows` separable rows.

    The `Queued` of its batch has `is_call`.
    """

    samples: int
    rows: int


class CallEnded(NamedTuple):
    """A call got the labels of `samples`, or ended without labels (0); its batch was released."""

    batch: int
    samples: int


class LoopWaiting(NamedTuple):
    """The training loop waits for a batch, or no longer does."""

    waits: bool = True


class BatchTaken(NamedTuple):
    """The training loop took a batch.

    Attributes:
        batch: its number.
        samples: number of samples in it.
        step_s: seconds of the loop's work on the previous batch; None: there was none.
    """

    batch: int
    samples: int
    step_s: float | None


class SourceEnded(NamedTuple):
    """The source has nothing more for this epoch."""


class EpochBegan(NamedTuple):
    """The student left the previous epoch, whose batches are forgotten, and began another.

    `data_epoch` is the number of epochs that the student has begun.
    """

    data_epoch: int


@dataclass(frozen=True, slots=True)
class EngineResumed:
    """This engine continues the work of a previous one.

    Attributes:
        data_epoch: number of epochs that the student has begun.
        left: the state that the previous engine left.
        ended: the source has nothing more for this epoch.
        waiting: the training loop waits for a batch.
    """

    data_epoch: int
    left: HandoffState
    ended: bool
    waiting: bool


class ProfileLoaded(NamedTuple):
    """Measurements of the job's last run; `wall_s` is the current time of the wall clock."""

    profile: StreamProfile | None
    wall_s: float


# -------------------------------------------------------------------- events: the teachers


class Probed(NamedTuple):
    """A teacher has answered a probe.

    Attributes:
        teacher: its id.
        link: number of the connection.
        most_rows: limit of rows that its model takes in one request; None: unknown.
        misfit: why the reader's settings do not fit its model; empty: they fit.
        kinds: the kinds that it publishes for the requested outputs.
    """

    teacher: str
    link: int
    most_rows: int | None = None
    misfit: str = ""
    kinds: tuple[PublishedKind, ...] = ()


class ProbeFailed(NamedTuple):
    """A probe failed.

    Attributes:
        teacher: its id.
        link: number of the connection.
        failure: how the probe failed.
        reason: message.
        retry_after_s: seconds after which a full teacher expects to have room; None: unknown.
    """

    teacher: str
    link: int
    failure: FailureCause
    reason: str
    retry_after_s: float | None = None


class AnswerCame(NamedTuple):
    """Labels of all rows of a request arrived.

    Attributes:
        teacher: its id.
        link: number of the connection.
        request: number of the request.
        rows: rows of the request.
        row_nbytes: bytes of one row's labels.
        device_s: seconds that the teacher's device needed; <= 0: unknown.
        samples: samples of the request; equal to `rows` if batches can be cut.
        numerics_id: identifies the numerics of the labels; empty: unknown.
        draining: the teacher is about to leave and asks for no more requests.
        misfit: why these labels cannot be combined with others of the batch; empty: they can be.
        agrees: teachers with a kept answer to the request that agrees with this one.
    """

    teacher: str
    link: int
    request: int
    rows: int
    row_nbytes: int
    device_s: float
    samples: int
    numerics_id: str = ""
    draining: bool = False
    misfit: str = ""
    agrees: frozenset[str] = frozenset()


class RequestFailed(NamedTuple):
    """A request failed.

    Attributes:
        teacher: its id.
        link: number of the connection.
        request: number of the request.
        failure: how it failed.
        reason: message.
        retry_after_s: see `ProbeFailed`.
        void: a batch of the request was taken or forgotten, so its memory may have been reused.
    """

    teacher: str
    link: int
    request: int
    failure: FailureCause
    reason: str
    retry_after_s: float | None = None
    void: bool = False


class PathsTried(NamedTuple):
    """Results of all or some of the connection attempts that a `TryPaths` requested.

    Attributes:
        began_at: from `TryPaths`.
        refusals: why each connection failed; empty text: it was accepted, or could not be tried.
    """

    began_at: float
    refusals: Mapping[Peer, str]


class Tick(NamedTuple):
    """The driver has reported all events, or time has passed: decide what follows.

    Attributes:
        awaiting_lookup: number of batches that wait for their lookup in a label store, before they
            enter the ledger.
        store_content: content of the stored labels that are searched; empty: unknown, or no store.
        coordinator_answers: the coordinator can be reached, so assignments are up to date.
        calls_awaiting_lookup: how many batches of `awaiting_lookup` belong to calls.
    """

    awaiting_lookup: int = 0
    store_content: str = ""
    coordinator_answers: bool = True
    calls_awaiting_lookup: int = 0


Event = (
    Pulled
    | Called
    | CallEnded
    | Queued
    | LoopWaiting
    | BatchTaken
    | AnswerCame
    | Tick
    | SourceEnded
    | EpochBegan
    | EngineResumed
    | ProfileLoaded
    | Assigned
    | Probed
    | ProbeFailed
    | RequestFailed
    | PathsTried
    | StoreSearched
    | BatchRestored
    | InvalidateBatch
    | Released
    | DeliverUnlabelled
    | Cancelled
)

"""What the reader core is told: of the stream, of teachers, and that time has passed.

The driver (the live engine, or the simulator) turns I/O into events and carries out the
instructions that come back. It counts nothing that decides something. It reports what comes of a
request or of a probe with the number of the connection that it went over; what comes late, over a
connection that was closed, the core ignores.

Of the ledger's events a driver uses `Queued`, `StoreSearched`, `BatchRestored`, `Released`, `InvalidateBatch`,
`DeliverUnlabelled` and `Cancelled` as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, Self

from ..ledger.events import BatchRestored as BatchRestored
from ..ledger.events import Cancelled as Cancelled
from ..ledger.events import DeliverUnlabelled as DeliverUnlabelled
from ..ledger.events import InvalidateBatch as InvalidateBatch
from ..ledger.events import Queued as Queued
from ..ledger.events import Released as Released
from ..ledger.events import StoreSearched as StoreSearched
from ..stream_stats import StreamProfile

#: What a request or a probe came to, from the least to the worst:
#:
#: * "overwritten": the inputs were written over before the teacher had read them.
#: * "refused": the teacher will never answer this request.
#: * "full": it has no room now.
#: * "shut out": it does not accept the reader's credentials.
#: * "crashed": the request crashed a predictor.
#: * "failed": anything else that may go well the next time; the connection holds.
#: * "bad answer": what came cannot be labels.
#: * "lost": the connection broke.
RequestFailure = Literal[
    "overwritten", "refused", "full", "shut out", "crashed", "failed", "bad answer", "lost"
]


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

    def __hash__(self) -> int:
        return hash(self.teacher_id)


@dataclass(frozen=True, slots=True)
class Advice:
    """What an assignment says of contents.

    Attributes:
        content_id: of all its teachers; empty where there are none, or nothing is known.
        next_content_id: what the student moves to at its next epoch; empty: it stays.
        data_epoch: the student's epoch that the assignment was made for.
    """

    content_id: str = ""
    next_content_id: str = ""
    data_epoch: int = 0


@dataclass(frozen=True, slots=True)
class Assigned:
    """The teachers that this reader may send to from now on.

    Attributes:
        peers: all of them; one that is missing is revoked, unless it is in `lost`.
        lost: ids of teachers that are known to be dead.
        live: teachers of the service that the coordinator knows to live.
        epoch: (term, counter) of the assignment; (0, 0) without a coordinator.
        advice: what it says of contents.
        barred: ids of those of the peers that are not to be asked, as their numerics are others;
            the core finds them.
    """

    peers: tuple[Peer, ...]
    lost: frozenset[str] = frozenset()
    live: int = 0
    epoch: tuple[int, int] = (0, 0)
    advice: Advice = field(default_factory=Advice)
    barred: frozenset[str] = frozenset()

    def to_json(self) -> dict[str, Any]:
        """Without those that are lost: whoever reads it never had them."""
        return {
            "peers": [asdict(peer) for peer in self.peers],
            "live": self.live,
            "epoch": self.epoch,
            "advice": asdict(self.advice),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        peers = [Peer(**{**peer, "inputs": tuple(peer["inputs"])}) for peer in value["peers"]]
        term, counter = value["epoch"]
        advice = Advice(**value["advice"])
        return cls(tuple(peers), live=value["live"], epoch=(term, counter), advice=advice)


class PublishedKind(NamedTuple):
    """What a teacher publishes that the numbers of one output are.

    Attributes:
        output: its name.
        kind: "logits", "probabilities", "log-probabilities" or "other".
        is_label: labels are these numbers; else the teacher makes labels of them by their kind, and
            they are alike whatever that is.
    """

    output: str
    kind: str
    is_label: bool = True


@dataclass(frozen=True, slots=True)
class HandoffState:
    """State that a core hands to its successor when the engine restarts.

    Attributes:
        content_id: as it was told last: empty if it waited to be moved.
        bound: whether the epoch keeps to that content.
        assigned: the teachers that it sent to, or would have in the end.
        numerics_id: what its labels are pinned to; empty: nothing.
        kinds: what its labels are taken for.
    """

    content_id: str = ""
    bound: bool = False
    assigned: Assigned = field(default_factory=lambda: Assigned(()))
    numerics_id: str = ""
    kinds: tuple[PublishedKind, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "content_id": self.content_id,
            "bound": self.bound,
            "assigned": self.assigned.to_json(),
            "numerics_id": self.numerics_id,
            "kinds": self.kinds,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        assigned = Assigned.from_json(value["assigned"])
        kinds = tuple(PublishedKind(*kind) for kind in value["kinds"])
        return cls(value["content_id"], value["bound"], assigned, value["numerics_id"], kinds)


# ---------------------------------------------------------------------- events: the stream


class Pulled(NamedTuple):
    """The source yielded a batch of so many samples, after `source_s`; `rows` can be told apart."""

    source_s: float
    samples: int
    rows: int


class LoopWaiting(NamedTuple):
    """The training loop waits for a batch; or it has, or will have at once, what it waited for."""

    waits: bool = True


class BatchTaken(NamedTuple):
    """The training loop has a batch, after `step_s` of work on the one before; None: the first."""

    batch: int
    samples: int
    step_s: float | None


class SourceEnded(NamedTuple):
    """The source has nothing more for this epoch."""


class EpochBegan(NamedTuple):
    """The epoch before it was left: every batch is forgotten."""

    data_epoch: int


@dataclass(frozen=True, slots=True)
class EngineResumed:
    """The engine goes on where another one ended.

    Attributes:
        data_epoch: epochs begun by the student.
        left: what the other one left.
        ended: the source has nothing more for this epoch.
        waiting: the training loop waits for a batch.
    """

    data_epoch: int
    left: HandoffState
    ended: bool
    waiting: bool


class ProfileLoaded(NamedTuple):
    """What the last run of this job has measured; `wall_s` is the wall clock's time, now."""

    profile: StreamProfile | None
    wall_s: float


# -------------------------------------------------------------------- events: the teachers


class Probed(NamedTuple):
    """A teacher has answered a probe.

    Attributes:
        teacher: its id.
        link: number of the connection.
        most_rows: that its model takes at once; None: it does not say.
        misfit: in words, why the reader's settings are not for its model; empty: they are.
        kinds: what it publishes of the outputs that are asked for.
    """

    teacher: str
    link: int
    most_rows: int | None = None
    misfit: str = ""
    kinds: tuple[PublishedKind, ...] = ()


class ProbeFailed(NamedTuple):
    """A probe came to nothing; `room_in_s`: when a teacher that is full has room, as it says."""

    teacher: str
    link: int
    failure: RequestFailure
    reason: str
    room_in_s: float | None = None


class AnswerCame(NamedTuple):
    """Labels of all rows of a request have come.

    Attributes:
        teacher: its id.
        link: number of the connection.
        request: number of the request.
        rows: of it.
        row_nbytes: bytes of one row's labels.
        device_s: of the teacher's device; <= 0: unknown.
        samples: of it; as many as `rows` where batches can be cut.
        numerics_id: what makes the bits of the labels; empty: not known.
        draining: the teacher is to get nothing more.
        misfit: in words, why these labels cannot stand beside others of the batch; empty: they can.
        agrees: of the teachers whose answers to the request are kept, those that say the same.
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
    """A request came to nothing.

    Attributes:
        teacher: its id.
        link: number of the connection.
        request: number of the request.
        failure: how.
        reason: in words.
        room_in_s: as of `ProbeFailed`.
        void: a batch of the request is over, so its memory may have been another one's.
    """

    teacher: str
    link: int
    request: int
    failure: RequestFailure
    reason: str
    room_in_s: float | None = None
    void: bool = False


class PathsTried(NamedTuple):
    """Connections to teachers' machines were tried, as `TryPaths` asked; all of them or some.

    Attributes:
        began_at: as of `TryPaths`.
        refusals: in words, why there is no connection to each of them; empty: it was accepted.
    """

    began_at: float
    refusals: Mapping[Peer, str]


class Tick(NamedTuple):
    """All that has happened is told, or time has passed: decide what follows.

    Attributes:
        in_store: batches that are being looked up in a label store, before the ledger has them.
        store_content: the content that the store looks up; empty: not known, or no store.
        coordinator_answers: it would be heard here if the assignment changed.
    """

    in_store: int = 0
    store_content: str = ""
    coordinator_answers: bool = True


Event = (
    Pulled
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

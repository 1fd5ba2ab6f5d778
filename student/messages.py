"""What a supervisor and its ranks say to each other: one small dataclass for each message.

| from | messages |
|---|---|
| the supervisor | `Order` first of all; then `Leave`, and an `Answer` to each `Ask` |
| a rank | `Ready`, `Progress`, `Saved`, `Ask`, `Scaled`; at last `Finished`, `Left` or `Failed` |
| ... that is to inspect its job | `Inspected` or `Failed` |

They travel as JSON lines over a socket pair (`link.py`); each has its name as "kind".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal, Self

from ..proto.channel import Message
from ..runtime.errors import WireError
from .settings import TrainSettings

#: Exit code of a rank that left at a safe point, or because a peer or its supervisor is gone:
#: EX_TEMPFAIL of sysexits.h. Nothing is wrong with the job.
EXIT_AGAIN: Final = 75


@dataclass(frozen=True, slots=True)
class RankMessage:
    """What all messages have in common."""

    def to_json(self) -> Message:
        return {"kind": type(self).__name__.lower(), **asdict(self)}

    @classmethod
    def from_json(cls, message: Mapping[str, Any]) -> Self:
        """The message again; fields of a newer version are passed over.

        Raises:
            WireError: a field is missing.
        """
        known = {one.name for one in fields(cls)}
        try:
            return cls(**{name: value for name, value in message.items() if name in known})
        except TypeError as error:
            raise WireError(f"not a message {cls.__name__!r} between ranks: {error}") from error


@dataclass(frozen=True, slots=True)
class Order(RankMessage):
    """All that a rank has to know; the first message that it gets.

    Attributes:
        settings: of the job.
        generation: number of the world that it is a part of.
        rank: its number in this world, from 0.
        world: ranks in all.
        local_rank: its number on its node; rank 0 of a node writes snapshots.
        node: id of its node.
        endpoints: host:port of each rank, for the group of `paddle.distributed`.
        restore: path or URL of the checkpoint to begin with; empty: from the beginning.
        previous_world: ranks of the world that wrote that checkpoint; 0: there is none.
        snapshot: names of the shared memory that snapshots go into, one for each slot; empty:
            this rank keeps none.
        moved: settings that decide the order of samples have changed since that checkpoint: the
            epoch begins anew.
        inspect: train nothing: tell the fingerprint of the job as `Inspected`, and end.
    """

    settings: TrainSettings
    generation: int = 1
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    node: str = ""
    endpoints: tuple[str, ...] = ()
    restore: str = ""
    previous_world: int = 0
    snapshot: tuple[str, ...] = ()
    moved: bool = False
    inspect: bool = False

    def to_json(self) -> Message:
        told = {one.name: getattr(self, one.name) for one in fields(self)}
        return {"kind": "order", **told, "settings": self.settings.to_json()}

    @classmethod
    def from_json(cls, message: Mapping[str, Any]) -> Self:
        given = {one.name: message[one.name] for one in fields(cls) if one.name in message}
        given["settings"] = TrainSettings.from_json(message["settings"])
        for name in ("endpoints", "snapshot"):
            given[name] = tuple(given.get(name, ()))
        return cls(**given)


@dataclass(frozen=True, slots=True)
class Leave(RankMessage):
    """Go at the next safe point: snapshot, `Left`, exit code 75."""


@dataclass(frozen=True, slots=True)
class Answer(RankMessage):
    """To the `Ask` of the same number; `error` is the name of one of ours, `value` its words."""

    number: int
    value: Any = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Inspected(RankMessage):
    """Every function of the job file that a training begins with was called, without an error.

    Attributes:
        fingerprint: of the job; see `scheduler/students/world.py`.
    """

    fingerprint: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ready(RankMessage):
    """The job file is loaded, the checkpoint restored, the group formed: the first step begins.

    Attributes:
        step: optimizer steps taken before it.
        steps: how many there will be in all, if that is known; 0: not.
        total_batch: rows of a step of all ranks together; 0: each rank reads its own batches.
    """

    step: int = 0
    epoch: int = 0
    steps: int = 0
    total_batch: int = 0


@dataclass(frozen=True, slots=True)
class Progress(RankMessage):
    """One step is done.

    Attributes:
        step: optimizer steps taken in this job, this one included.
        epoch: number of the epoch, from 0.
        rows: of this rank in this step.
        total: rows of all ranks in this step.
        losses: by name ("total", and where they are known "hard", "soft", "features"): means over
            this rank's rows.
        metrics: by name, of the last evaluation.
        step_s: seconds of the step without waiting for the batch or for other ranks.
        wait_s: seconds of waiting for the batch.
        samples_per_s: of all ranks together, lately.
        teachers: how many label for this rank; None: it has no reader.
        volume: bytes that are labelled and not consumed.
        waiting_for: what it waits for now; empty: nothing.
        peers_s: seconds that it has waited for the other ranks, without a break.
        upper_bytes: at so many labelled bytes no more are pulled; 0: it has no reader.
        wanted: teachers that its reader asks for.
    """

    step: int
    epoch: int = 0
    rows: int = 0
    total: int = 0
    losses: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    step_s: float = 0.0
    wait_s: float = 0.0
    samples_per_s: float = 0.0
    teachers: int | None = None
    volume: int = 0
    waiting_for: str = ""
    peers_s: float = 0.0
    upper_bytes: int = 0
    wanted: int = 0


@dataclass(frozen=True, slots=True)
class Saved(RankMessage):
    """A complete snapshot lies in slot `slot`; the copy held the step up for `blocked_s`."""

    step: int
    slot: int
    blocked_s: float = 0.0


#: fill(epoch, shards), lease(epoch), done(epoch, start, stop): of the job board, in the generation
#: and for the rank of the order.
What = Literal["fill", "lease", "done"]


@dataclass(frozen=True, slots=True)
class Ask(RankMessage):
    """A question to the supervisor, which gives an `Answer` of the same number.

    Attributes:
        what: "fill": `shards`, a list of (start, stop), are those of `epoch`, unless somebody has
            said so before; answered by None. "lease": the next one of `epoch`, or its first `most`
            rows; answered by [start, stop], or None where there is none left. "done": [start, stop)
            is trained; answered by None.
    """

    number: int
    what: What
    epoch: int = 0
    start: int = 0
    stop: int = 0
    most: int = 0
    shards: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Scaled(RankMessage):
    """`on_scale(old, new)` of the job was called on this rank, once for this change."""

    old: int
    new: int


@dataclass(frozen=True, slots=True)
class Finished(RankMessage):
    """The job is done; the metrics are those of its last evaluation."""

    step: int
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Left(RankMessage):
    """Gone at a safe point, with all that was trained in the snapshot; or a peer is gone.

    Attributes:
        safe: the snapshot of this very step is complete.
        why: in words.
    """

    step: int
    safe: bool = True
    why: str = ""


@dataclass(frozen=True, slots=True)
class Failed(RankMessage):
    """The user's code, or ours, raised.

    Attributes:
        step: the one that was being taken, from 1.
        positions: of its batch, in the order of the epoch; empty where they are not known.
        error: one line.
        traceback: all of it; empty where the line says everything, as of a setting.
        usage: nothing is to be tried again: the job file, or a setting, is wrong.
        gave_up: nothing is to be tried again: no teacher came in the time that the job allows.
    """

    step: int
    epoch: int = 0
    positions: list[int] = field(default_factory=list)
    error: str = ""
    traceback: str = ""
    usage: bool = False
    gave_up: bool = False


FromSupervisor = Order | Leave | Answer
FromRank = Inspected | Ready | Progress | Saved | Ask | Scaled | Finished | Left | Failed

_FROM_SUPERVISOR: Final[dict[str, type[FromSupervisor]]] = {
    "order": Order,
    "leave": Leave,
    "answer": Answer,
}
_FROM_RANK: Final[dict[str, type[FromRank]]] = {
    "inspected": Inspected,
    "ready": Ready,
    "progress": Progress,
    "saved": Saved,
    "ask": Ask,
    "scaled": Scaled,
    "finished": Finished,
    "left": Left,
    "failed": Failed,
}


def from_supervisor(message: Message) -> FromSupervisor:
    """What a rank was told; raises WireError where it is nothing of that."""
    if (kind := _FROM_SUPERVISOR.get(message["kind"])) is None:
        raise WireError(f"a supervisor does not say {message['kind']!r} to its ranks")
    return kind.from_json(message)


def from_rank(message: Message) -> FromRank:
    """What a rank says; raises WireError where it is nothing of that."""
    if (kind := _FROM_RANK.get(message["kind"])) is None:
        raise WireError(f"a rank does not say {message['kind']!r} to its supervisor")
    return kind.from_json(message)
